//! Files as blocks, directories as names, each in two states: what a reader sees and what a power cut leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Component, Path};
use std::sync::Arc;

use super::super::DirEntry;

const ROOT: u64 = 0;

/// Bytes in blocks; a block that is not there holds zeros.
#[derive(Clone, Default)]
struct Image {
    len: u64,
    blocks: BTreeMap<u64, Arc<Vec<u8>>>,
}

pub(super) struct FileNode {
    block_bytes: u64,
    cached: Image,
    durable: Image,
    dirty: BTreeSet<u64>,
}

#[derive(Default)]
struct DirNode {
    cached: BTreeMap<String, u64>,
    durable: BTreeMap<String, u64>,
}

enum Node {
    File(FileNode),
    Dir(DirNode),
}

/// A change of names that is not durable yet. A rename is one change of up to two directories.
struct NameChange {
    inode: u64,
    removed: Option<(u64, String)>,
    added: Option<(u64, String)>,
}

pub(super) struct Tree {
    block_bytes: u64,
    nodes: BTreeMap<u64, Node>,
    next_inode: u64,
    pending: Vec<NameChange>,
}

fn not_found() -> io::Error {
    ErrorKind::NotFound.into()
}

fn keeps(random: &mut dyn FnMut() -> u64) -> bool {
    // the high bit: the low ones of simple generators are weak
    random() >> 63 == 1
}

impl FileNode {
    fn new(block_bytes: u64) -> Self {
        Self { block_bytes, cached: Image::default(), durable: Image::default(), dirty: BTreeSet::new() }
    }

    pub fn len(&self) -> u64 {
        self.cached.len
    }

    /// Splits a range into (block, offset in it, length).
    fn pieces(&self, at: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> + use<> {
        let block_bytes = self.block_bytes;
        let end = at + len as u64;
        let mut at = at;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let block = at / block_bytes;
            let take = (block_bytes - at % block_bytes).min(end - at);
            let piece = (block, small(at % block_bytes), small(take));
            at += take;
            Some(piece)
        })
    }

    pub fn read_at(&self, buf: &mut [u8], at: u64) -> usize {
        let take = small(self.cached.len.saturating_sub(at).min(buf.len() as u64));
        let mut done = 0;
        for (block, offset, len) in self.pieces(at, take) {
            match self.cached.blocks.get(&block) {
                Some(bytes) => buf[done..done + len].copy_from_slice(&bytes[offset..offset + len]),
                None => buf[done..done + len].fill(0),
            }
            done += len;
        }
        take
    }

    pub fn write_at(&mut self, buf: &[u8], at: u64) {
        let mut done = 0;
        for (block, offset, len) in self.pieces(at, buf.len()) {
            let part = &buf[done..done + len];
            done += len;
            self.dirty.insert(block);
            if !self.cached.blocks.contains_key(&block) && part.iter().all(|byte| *byte == 0) {
                continue;
            }
            let bytes = self.cached.blocks.entry(block).or_insert_with(|| Arc::new(vec![0; small(self.block_bytes)]));
            Arc::make_mut(bytes)[offset..offset + len].copy_from_slice(part);
        }
        self.cached.len = self.cached.len.max(at + buf.len() as u64);
    }

    pub fn set_len(&mut self, len: u64) {
        if len < self.cached.len {
            let first = len / self.block_bytes;
            let keep = small(len % self.block_bytes);
            let cut: Vec<u64> = self.cached.blocks.range(first..).map(|(block, _)| *block).collect();
            for block in cut {
                self.dirty.insert(block);
                if block == first && keep > 0 {
                    if let Some(bytes) = self.cached.blocks.get_mut(&block) {
                        Arc::make_mut(bytes)[keep..].fill(0);
                    }
                } else {
                    self.cached.blocks.remove(&block);
                }
            }
        }
        self.cached.len = len;
    }

    fn harden(&mut self, block: u64) {
        match self.cached.blocks.get(&block) {
            Some(bytes) => self.durable.blocks.insert(block, Arc::clone(bytes)),
            None => self.durable.blocks.remove(&block),
        };
    }

    pub fn sync(&mut self) {
        for block in std::mem::take(&mut self.dirty) {
            self.harden(block);
        }
        self.durable.len = self.cached.len;
    }

    /// A sync failed: the pages count as clean though the device never got them.
    pub fn forget_dirty(&mut self) {
        self.dirty.clear();
    }

    /// Clean pages go; the next read of them comes from the device.
    pub fn drop_cache(&mut self) {
        let mut blocks = self.durable.blocks.clone();
        for block in &self.dirty {
            match self.cached.blocks.get(block) {
                Some(bytes) => blocks.insert(*block, Arc::clone(bytes)),
                None => blocks.remove(block),
            };
        }
        self.cached.blocks = blocks;
    }

    fn lose_power(&mut self, random: &mut dyn FnMut() -> u64) {
        for block in std::mem::take(&mut self.dirty) {
            if keeps(random) {
                self.harden(block);
            }
        }
        if self.durable.len != self.cached.len && keeps(random) {
            self.durable.len = self.cached.len;
        }
        let beyond = self.durable.len.div_ceil(self.block_bytes);
        self.durable.blocks.split_off(&beyond);
        let (last, keep) = (self.durable.len / self.block_bytes, small(self.durable.len % self.block_bytes));
        if let Some(bytes) = self.durable.blocks.get_mut(&last) {
            Arc::make_mut(bytes)[keep..].fill(0);
        }
        self.cached = self.durable.clone();
    }

    pub fn flip_bit(&mut self, bit: u64) -> io::Result<()> {
        let at = bit / 8;
        if at >= self.cached.len {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let (block, offset) = (at / self.block_bytes, small(at % self.block_bytes));
        for image in [&mut self.cached, &mut self.durable] {
            let bytes = image.blocks.entry(block).or_insert_with(|| Arc::new(vec![0; small(self.block_bytes)]));
            Arc::make_mut(bytes)[offset] ^= 1 << (bit % 8);
        }
        Ok(())
    }
}

fn small(bytes: u64) -> usize {
    usize::try_from(bytes).expect("invariant: bounded by a block or a buffer")
}

impl Tree {
    pub fn new(block_bytes: usize) -> Self {
        let nodes = BTreeMap::from([(ROOT, Node::Dir(DirNode::default()))]);
        Self { block_bytes: block_bytes as u64, nodes, next_inode: ROOT + 1, pending: Vec::new() }
    }

    fn dir(&self, inode: u64) -> io::Result<&DirNode> {
        match self.nodes.get(&inode) {
            Some(Node::Dir(dir)) => Ok(dir),
            Some(Node::File(_)) => Err(ErrorKind::NotADirectory.into()),
            None => Err(not_found()),
        }
    }

    fn dir_mut(&mut self, inode: u64) -> io::Result<&mut DirNode> {
        match self.nodes.get_mut(&inode) {
            Some(Node::Dir(dir)) => Ok(dir),
            Some(Node::File(_)) => Err(ErrorKind::NotADirectory.into()),
            None => Err(not_found()),
        }
    }

    pub fn file_mut(&mut self, inode: u64) -> io::Result<&mut FileNode> {
        match self.nodes.get_mut(&inode) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Dir(_)) => Err(ErrorKind::IsADirectory.into()),
            None => Err(not_found()),
        }
    }

    fn find(&self, path: &Path) -> io::Result<u64> {
        let mut inode = ROOT;
        for name in names(path)? {
            inode = *self.dir(inode)?.cached.get(name).ok_or_else(not_found)?;
        }
        Ok(inode)
    }

    fn parent<'a>(&self, path: &'a Path) -> io::Result<(u64, &'a str)> {
        let name = names(path)?.pop().ok_or(ErrorKind::InvalidInput)?;
        let parent = self.find(path.parent().unwrap_or(Path::new("")))?;
        self.dir(parent)?;
        Ok((parent, name))
    }

    pub fn exists(&self, path: &Path) -> bool {
        self.find(path).is_ok()
    }

    pub fn file_at(&self, path: &Path) -> io::Result<u64> {
        let inode = self.find(path)?;
        match self.nodes.get(&inode) {
            Some(Node::File(_)) => Ok(inode),
            _ => Err(ErrorKind::IsADirectory.into()),
        }
    }

    fn link_new(&mut self, parent: u64, name: &str, node: Node) -> io::Result<u64> {
        let inode = self.next_inode;
        self.next_inode += 1;
        self.nodes.insert(inode, node);
        self.dir_mut(parent)?.cached.insert(name.to_owned(), inode);
        self.pending.push(NameChange { inode, removed: None, added: Some((parent, name.to_owned())) });
        Ok(inode)
    }

    pub fn create_file(&mut self, path: &Path) -> io::Result<u64> {
        let (parent, name) = self.parent(path)?;
        if self.dir(parent)?.cached.contains_key(name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let node = Node::File(FileNode::new(self.block_bytes));
        self.link_new(parent, name, node)
    }

    pub fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut inode = ROOT;
        for name in names(path)? {
            inode = match self.dir(inode)?.cached.get(name) {
                Some(next) => *next,
                None => self.link_new(inode, name, Node::Dir(DirNode::default()))?,
            };
        }
        self.dir(inode).map(|_| ())
    }

    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let inode = *self.dir(from_dir)?.cached.get(from_name).ok_or_else(not_found)?;
        if let Some(there) = self.dir(to_dir)?.cached.get(to_name) {
            let both_files = matches!((self.nodes.get(&inode), self.nodes.get(there)), (Some(Node::File(_)), Some(Node::File(_))));
            if !both_files {
                return Err(ErrorKind::AlreadyExists.into());
            }
        }
        self.dir_mut(from_dir)?.cached.remove(from_name);
        self.dir_mut(to_dir)?.cached.insert(to_name.to_owned(), inode);
        self.pending.push(NameChange { inode, removed: Some((from_dir, from_name.to_owned())), added: Some((to_dir, to_name.to_owned())) });
        Ok(())
    }

    fn unlink(&mut self, parent: u64, name: &str) -> io::Result<()> {
        let inode = self.dir_mut(parent)?.cached.remove(name).ok_or_else(not_found)?;
        self.pending.push(NameChange { inode, removed: Some((parent, name.to_owned())), added: None });
        Ok(())
    }

    pub fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        self.file_at(path)?;
        let (parent, name) = self.parent(path)?;
        self.unlink(parent, name)
    }

    pub fn remove_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.find(path)?;
        self.dir(inode)?;
        let (parent, name) = self.parent(path)?;
        self.unlink(parent, name)
    }

    pub fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let dir = self.dir(self.find(path)?)?;
        let entry = |(name, inode): (&String, &u64)| match self.nodes.get(inode) {
            Some(Node::File(file)) => DirEntry { name: name.clone(), is_dir: false, len: file.len() },
            _ => DirEntry { name: name.clone(), is_dir: true, len: 0 },
        };
        Ok(dir.cached.iter().map(entry).collect())
    }

    pub fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.find(path)?;
        self.dir(inode)?;
        let touches = |place: &Option<(u64, String)>| place.as_ref().is_some_and(|(dir, _)| *dir == inode);
        for change in std::mem::take(&mut self.pending) {
            if touches(&change.removed) || touches(&change.added) {
                self.harden(&change);
            } else {
                self.pending.push(change);
            }
        }
        Ok(())
    }

    fn harden(&mut self, change: &NameChange) {
        if let Some((dir, name)) = &change.removed
            && let Some(Node::Dir(dir)) = self.nodes.get_mut(dir)
            && dir.durable.get(name) == Some(&change.inode)
        {
            dir.durable.remove(name);
        }
        let Some((dir, name)) = &change.added else { return };
        // there are no hard links: a file that gets a new name has lost the old one, even if that loss was not kept by itself
        for node in self.nodes.values_mut() {
            if let Node::Dir(other) = node {
                other.durable.retain(|_, inode| *inode != change.inode);
            }
        }
        if let Some(Node::Dir(dir)) = self.nodes.get_mut(dir) {
            dir.durable.insert(name.clone(), change.inode);
        }
    }

    pub fn lose_power(&mut self, random: &mut dyn FnMut() -> u64) {
        for change in std::mem::take(&mut self.pending) {
            if keeps(random) {
                self.harden(&change);
            }
        }
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => file.lose_power(random),
                Node::Dir(dir) => dir.cached = dir.durable.clone(),
            }
        }
        let mut living = BTreeSet::from([ROOT]);
        let mut todo = vec![ROOT];
        while let Some(inode) = todo.pop() {
            if let Some(Node::Dir(dir)) = self.nodes.get(&inode) {
                todo.extend(dir.cached.values().copied().filter(|inode| living.insert(*inode)));
            }
        }
        self.nodes.retain(|inode, _| living.contains(inode));
    }

    /// Tears the last write: some of its blocks keep what they held, one may be half new.
    pub fn tear(&mut self, inode: u64, at: u64, before: &[u8], len_before: u64, random: &mut dyn FnMut() -> u64) {
        let Ok(file) = self.file_mut(inode) else { return };
        let mut done = 0;
        for (block, offset, len) in file.pieces(at, before.len()) {
            let old = &before[done..done + len];
            let kept = match random() >> 62 {
                0 => 0,
                1 => len,
                _ => small(random() % (len as u64 + 1)),
            };
            done += len;
            let piece_at = block * file.block_bytes + offset as u64;
            file.write_at(&old[kept..], piece_at + kept as u64);
        }
        if len_before < file.cached.len && keeps(random) {
            file.cached.len = len_before + random() % (file.cached.len - len_before + 1);
        }
    }

    /// The lengths of all files that have a name.
    pub fn used_bytes(&self) -> u64 {
        let mut used = 0;
        let mut todo = vec![ROOT];
        while let Some(inode) = todo.pop() {
            match self.nodes.get(&inode) {
                Some(Node::Dir(dir)) => todo.extend(dir.cached.values().copied()),
                Some(Node::File(file)) => used += file.cached.len,
                None => {}
            }
        }
        used
    }
}

fn names(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => names.push(name.to_str().ok_or(ErrorKind::InvalidInput)?),
            Component::ParentDir | Component::Prefix(_) => return Err(ErrorKind::InvalidInput.into()),
        }
    }
    Ok(names)
}
