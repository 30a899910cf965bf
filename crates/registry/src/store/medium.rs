//! Where the bytes of a redb file lie: the seam at which tests put a failing or power-cut disk.
//!
//! [`RedbStore`](super::embedded::RedbStore) opens its medium once at start, and again after every
//! failure. `Scratch` lets redb open bytes that must not change: redb recovers a file by writing to
//! it, and a damaged file must stay as it is until a person has decided.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// Something that can be opened as a redb file, any number of times, one after the other.
pub trait Medium: Send + 'static {
    type Backend: StorageBackend;

    /// Names it in messages.
    fn path(&self) -> &Path;

    /// Opens it for reading and writing. It exists: an empty one is refused later, never filled.
    fn open(&mut self) -> io::Result<Self::Backend>;

    /// Called after a failure, before the next open: from now on what is read must be what the disk
    /// holds, not what was on its way there when the failure came.
    fn forget_unwritten(&mut self) -> io::Result<()>;
}

const PAGE_BYTES: u64 = 4096;

/// A copy-on-write view of other bytes: reads fall through, writes stay in memory and end with it.
pub(super) struct Scratch<B> {
    base: B,
    changed: Mutex<Changed>,
}

struct Changed {
    len: u64,
    /// How much of the base still shows: a view that shrank and grew again has zeroes there.
    base_visible: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl<B: StorageBackend> Scratch<B> {
    pub(super) fn over(base: B) -> io::Result<Self> {
        let len = base.len()?;
        let changed = Changed { len, base_visible: len, pages: BTreeMap::new() };
        Ok(Self { base, changed: Mutex::new(changed) })
    }

    fn changed(&self) -> MutexGuard<'_, Changed> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what the base shows from `offset` on; the rest of `out` is zeroes.
    fn read_base(&self, visible: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = usize::try_from(visible.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (from_base, beyond) = out.split_at_mut(there.min(out.len()));
        beyond.fill(0);
        if from_base.is_empty() { Ok(()) } else { self.base.read(offset, from_base) }
    }
}

/// Splits a range into its pieces per page: page number, offset in that page, length.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        let within = at % PAGE_BYTES;
        let piece = (PAGE_BYTES - within).min(end - at);
        let page = at / PAGE_BYTES;
        at += piece;
        let small = |n: u64| usize::try_from(n).expect("at most one page");
        (piece > 0).then(|| (page, small(within), small(piece)))
    })
}

impl<B: StorageBackend> StorageBackend for Scratch<B> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changed().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let changed = self.changed();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > changed.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = out;
        for (page, within, len) in pieces(offset, rest.len()) {
            let (piece, after) = rest.split_at_mut(len);
            match changed.pages.get(&page) {
                Some(bytes) => piece.copy_from_slice(&bytes[within..within + len]),
                None => {
                    self.read_base(changed.base_visible, page * PAGE_BYTES + within as u64, piece)?;
                }
            }
            rest = after;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut changed = self.changed();
        if len < changed.len {
            changed.base_visible = changed.base_visible.min(len);
            changed.pages.split_off(&len.div_ceil(PAGE_BYTES));
            let tail = usize::try_from(len % PAGE_BYTES).expect("less than a page");
            if let Some(page) = changed.pages.get_mut(&(len / PAGE_BYTES)) {
                page[tail..].fill(0);
            }
        }
        changed.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut changed = self.changed();
        let visible = changed.base_visible;
        let mut rest = data;
        for (page, within, len) in pieces(offset, data.len()) {
            let (piece, after) = rest.split_at(len);
            let bytes = match changed.pages.entry(page) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(free) => {
                    let mut bytes = vec![0; usize::try_from(PAGE_BYTES).expect("a page fits")];
                    self.read_base(visible, page * PAGE_BYTES, &mut bytes)?;
                    free.insert(bytes.into_boxed_slice())
                }
            };
            bytes[within..within + len].copy_from_slice(piece);
            rest = after;
        }
        changed.len = changed.len.max(offset + data.len() as u64);
        Ok(())
    }
}

impl<B> fmt::Debug for Scratch<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use redb::backends::InMemoryBackend;

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, Vec<u8>),
        SetLen(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let write = (0u64..20_000, prop::collection::vec(any::<u8>(), 0..9000))
            .prop_map(|(at, data)| Step::Write(at, data));
        let set_len = (0u64..30_000).prop_map(Step::SetLen);
        prop::collection::vec(prop_oneof![write, set_len], 0..12)
    }

    proptest! {
        /// A scratch view behaves as a copy of its base would, and the base never changes.
        #[test]
        fn behaves_as_a_copy(
            base in prop::collection::vec(any::<u8>(), 0..20_000),
            steps in steps(),
        ) {
            let memory = InMemoryBackend::new();
            memory.set_len(base.len() as u64).unwrap();
            memory.write(0, &base).unwrap();
            let scratch = Scratch::over(memory).unwrap();
            let mut oracle = base.clone();
            for step in steps {
                match step {
                    Step::Write(at, data) => {
                        let end = usize::try_from(at).unwrap() + data.len();
                        oracle.resize(oracle.len().max(end), 0);
                        oracle[end - data.len()..end].copy_from_slice(&data);
                        scratch.write(at, &data).unwrap();
                    }
                    Step::SetLen(len) => {
                        oracle.resize(usize::try_from(len).unwrap(), 0);
                        scratch.set_len(len).unwrap();
                    }
                }
                prop_assert_eq!(scratch.len().unwrap(), oracle.len() as u64);
                let mut seen = vec![0; oracle.len()];
                scratch.read(0, &mut seen).unwrap();
                prop_assert!(seen == oracle);
            }
            prop_assert!(scratch.read(oracle.len() as u64, &mut [0]).is_err());
            let mut unchanged = vec![0; base.len()];
            scratch.base.read(0, &mut unchanged).unwrap();
            prop_assert!(unchanged == base);
        }
    }
}
