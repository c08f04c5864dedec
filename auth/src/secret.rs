//! Values that no log, error or answer may show.

use zeroize::Zeroize;

/// A secret value. It cannot be printed, compared or serialized, and its memory is overwritten when it goes.
///
/// ```compile_fail
/// println!("{:?}", veena_auth::Secret::new([7u8; 32]));
/// ```
pub struct Secret<T: Zeroize>(T);

impl<T: Zeroize> Secret<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value. Whoever calls this must not let it out.
    pub const fn expose(&self) -> &T {
        &self.0
    }

    /// The value, to be filled in. Whoever calls this must not let it out.
    pub const fn expose_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Zeroize> Drop for Secret<T> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}
