//! Who follows what a child does: crash tests at each step, and the agent, which is told what went wrong beside that.

use std::cell::RefCell;

use hotbay_core::ids::DriveId;
use hotbay_core::label::update::Want;

use super::protocol::chain;
use crate::label::{FileSectors, grow_table, refresh_third_copy};

#[derive(Clone, Copy)]
pub(super) struct Follow<'a> {
    pub(super) checkpoint: &'a dyn Fn(&'static str),
    /// Go to the agent with the answer.
    pub(super) warnings: &'a RefCell<Vec<String>>,
}

impl Follow<'_> {
    pub(super) fn reached(self, step: &'static str) {
        (self.checkpoint)(step);
    }

    /// Follows every attach: what a drive has grown by is for volumes. If it cannot be, it keeps the room that it had.
    pub(super) fn grow_table(self, path: &str, sectors: &FileSectors, held: &Want) {
        if let Err(error) = grow_table(sectors, held, self.checkpoint) {
            let warning = format!(
                "{path}: it has grown, and volumes cannot have that: {}; this is tried again at the next attach",
                chain(&error)
            );
            self.warnings.borrow_mut().push(warning);
        }
    }

    /// Follows every write of a label: the third copy is to say the same. If it cannot, nothing depends on it.
    pub(super) fn refresh_third_copy(self, path: &str, sectors: &FileSectors, drive: DriveId) {
        if let Err(error) = refresh_third_copy(sectors, drive, self.checkpoint) {
            let warning =
                format!("{path}: the third copy of the label is not up to date: {}", chain(&error));
            self.warnings.borrow_mut().push(warning);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use hotbay_core::ids::{ClusterId, NodeId};
    use hotbay_core::order::Generation;

    use super::*;
    use crate::label::bring_up_to_date;

    #[test]
    fn a_third_copy_that_cannot_be_written_is_a_warning() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 << 20).unwrap();
        let want = Want {
            cluster: ClusterId::from_bits(1),
            drive: DriveId::from_bits(2),
            node: NodeId::from_bits(3),
            generation: Generation::from_number(4),
            in_operation: true,
            take_over: false,
        };
        let written = FileSectors::new(file.reopen().unwrap(), 16 << 20, 512);
        bring_up_to_date(&written, &want, || Ok(()), &|_| ()).unwrap();
        let read_only = FileSectors::new(File::open(file.path()).unwrap(), 16 << 20, 512);

        let warnings = RefCell::new(Vec::new());
        let follow = Follow { checkpoint: &|_| (), warnings: &warnings };
        follow.refresh_third_copy("/dev/sdx", &read_only, want.drive);
        let said = warnings.take();
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("/dev/sdx: the third copy of the label is not"), "{said:?}");
        follow.refresh_third_copy("/dev/sdx", &written, want.drive);
        follow.refresh_third_copy("/dev/sdx", &read_only, want.drive);
        assert!(warnings.take().is_empty(), "it says what the label says");
    }
}
