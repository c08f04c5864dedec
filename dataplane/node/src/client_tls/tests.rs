use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{CertificateParams, KeyPair};
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::write_all_at;

use super::*;

struct Clock(AtomicU64);

impl WallClock for Clock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Some day in 2027, and one in 2060.
const NOW_MS: u64 = 1_800_000_000_000;
const LATER_MS: u64 = 2_850_000_000_000;

/// A certificate that is valid until a year's first day, and its key.
fn pem(until: i32, serial: u64) -> (String, String) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.serial_number = Some(serial.into());
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let key = KeyPair::generate().expect("random");
    (params.self_signed(&key).expect("signed").pem(), key.serialize_pem())
}

struct Place {
    disk: Arc<dyn Disk>,
    clock: Arc<Clock>,
    config: TlsConfig,
}

impl Place {
    fn new() -> Self {
        let disk = MemDisk::new();
        disk.create_dir_all(Path::new("/tls")).expect("a folder");
        let config = TlsConfig { cert_file: Some("/tls/cert.pem".into()), key_file: Some("/tls/key.pem".into()) };
        Self { disk: Arc::new(disk), clock: Arc::new(Clock(AtomicU64::new(NOW_MS))), config }
    }

    fn write(&self, (cert, key): &(String, String)) {
        for (path, text) in [("/tls/cert.pem", cert), ("/tls/key.pem", key)] {
            let path = Path::new(path);
            if self.disk.exists(path).expect("asked") {
                self.disk.remove_file(path).expect("removed");
            }
            write_all_at(self.disk.open(path, OpenMode::CreateNew).expect("new").as_ref(), text.as_bytes(), 0).expect("written");
        }
    }

    async fn open(&self) -> Result<ClientTls, ClientTlsError> {
        let tls = ClientTls::open(&self.config, &self.disk, self.clock.clone()).await?;
        Ok(tls.expect("TLS is wanted"))
    }
}

#[tokio::test]
async fn a_pair_that_does_not_do_is_refused_at_the_start_and_says_which_file_it_is() {
    let place = Place::new();
    let error = place.open().await.err().expect("there is none");
    assert_eq!(error.to_string(), "http.tls.cert_file /tls/cert.pem cannot be read");
    place.write(&(pem(2040, 1).0, pem(2040, 1).1));
    let error = place.open().await.err().expect("they are of two pairs");
    assert!(matches!(error, ClientTlsError::Unusable { source: PairError::Mismatch, .. }), "{error}");
    assert!(ClientTls::open(&TlsConfig::default(), &place.disk, place.clock.clone()).await.expect("nothing is wanted").is_none());
}

#[tokio::test]
async fn only_a_good_pair_takes_the_place_of_the_one_that_is_served() {
    let place = Place::new();
    place.write(&pem(2040, 1));
    let mut tls = place.open().await.expect("served");
    let serial = |tls: &ClientTls| tls.served.served().serial().to_owned();
    tls.look().await;
    assert_eq!((serial(&tls), tls.served.reloads()), ("01".to_owned(), (0, 0)), "nothing has changed");

    let second = pem(2040, 2);
    for (nth, bad) in [(second.0.clone(), pem(2040, 3).1), pem(2021, 4), (String::new(), second.1.clone())].iter().enumerate() {
        place.write(bad);
        tls.look().await;
        tls.look().await;
        assert_eq!((serial(&tls), tls.served.reloads()), ("01".to_owned(), (0, nth as u64 + 1)), "counted once for a change");
    }
    place.disk.remove_file(Path::new("/tls/key.pem")).expect("removed");
    tls.look().await;
    assert_eq!(tls.served.reloads(), (0, 4));

    place.write(&second);
    tls.look().await;
    assert_eq!((serial(&tls), tls.served.reloads()), ("02".to_owned(), (1, 4)));
}

#[tokio::test]
async fn a_certificate_that_expires_is_served_on_until_there_is_a_better_one() {
    let place = Place::new();
    place.write(&pem(2040, 1));
    let mut tls = place.open().await.expect("served");
    assert!(!tls.is_invalid);
    place.clock.0.store(LATER_MS, Ordering::Relaxed);
    tls.look().await;
    assert!(tls.is_invalid && tls.served.is_expired(LATER_MS));
    // A node that starts with it serves it too.
    let again = place.open().await.expect("served");
    assert!(again.is_invalid && again.served.is_expired(LATER_MS));
    place.write(&pem(2090, 2));
    tls.look().await;
    assert!(!tls.is_invalid && !tls.served.is_expired(LATER_MS) && tls.served.served().serial() == "02");
}
