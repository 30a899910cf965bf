//! How a volume shall be used: block or mount, by whom at the same time.

use hotbay_api::csi::VolumeCapability;
use hotbay_api::csi::volume_capability::access_mode::Mode;
use hotbay_api::csi::volume_capability::{AccessType, MountVolume};

use super::{NAME_BYTES_MAX, Refusal, TEXTS_BYTES_MAX, at_most, shown};
use crate::platform::{Access, AccessMode};

/// One way to use a volume.
pub(super) fn one(capability: VolumeCapability) -> Result<(Access, AccessMode), Refusal> {
    let VolumeCapability { access_mode, access_type } = capability;
    let access = match access_type {
        None => return Err(Refusal::NoAccessType),
        Some(AccessType::Block(_)) => Access::Block,
        Some(AccessType::Mount(mount)) => filesystem(mount)?,
    };
    let number = access_mode.ok_or(Refusal::NoAccessMode)?.mode;
    let mode = single_node(number, &access)?;
    Ok((access, mode))
}

/// Where it need not be said.
pub(super) fn optional(
    capability: Option<VolumeCapability>,
) -> Result<Option<(Access, AccessMode)>, Refusal> {
    capability.map(one).transpose()
}

/// All the ways in which one volume shall be usable: the access, which must be the same in all, and the modes, in
/// order and each once.
pub(super) fn all(
    capabilities: Vec<VolumeCapability>,
) -> Result<(Access, Vec<AccessMode>), Refusal> {
    let mut ways = capabilities.into_iter().map(one);
    let (access, mode) = ways.next().ok_or(Refusal::Missing { field: "volume_capabilities" })??;
    let mut modes = vec![mode];
    for way in ways {
        let (other, mode) = way?;
        if other.is_block() != access.is_block() {
            return Err(Refusal::BlockAndMount);
        }
        if other != access {
            return Err(Refusal::TwoFilesystems);
        }
        modes.push(mode);
    }
    modes.sort_unstable();
    modes.dedup();
    Ok((access, modes))
}

fn filesystem(mount: MountVolume) -> Result<Access, Refusal> {
    let MountVolume { fs_type, mount_flags: flags, volume_mount_group } = mount;
    if !volume_mount_group.is_empty() {
        return Err(Refusal::MountGroup);
    }
    at_most("fs_type", fs_type.len(), NAME_BYTES_MAX)?;
    // It becomes part of a program's name and an argument of mount.
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    if !fs_type.bytes().all(plain) || fs_type.starts_with(['-', '.']) {
        return Err(Refusal::FsType { text: shown(&fs_type) });
    }
    at_most("mount_flags", flags.iter().map(String::len).sum(), TEXTS_BYTES_MAX)?;
    if let Some(flag) = flags.iter().find(|flag| flag.chars().any(char::is_control)) {
        return Err(Refusal::ControlCharacter { field: "mount_flags", text: shown(flag) });
    }
    if flags.iter().any(String::is_empty) {
        return Err(Refusal::Missing { field: "one of mount_flags" });
    }
    Ok(Access::Mount { fs_type, flags })
}

fn single_node(number: i32, access: &Access) -> Result<AccessMode, Refusal> {
    let mode = Mode::try_from(number).map_err(|_| Refusal::UnknownAccessMode { number })?;
    match mode {
        Mode::Unknown => Err(Refusal::NoAccessMode),
        Mode::SingleNodeWriter => Ok(AccessMode::SingleNodeWriter),
        Mode::SingleNodeReaderOnly => Ok(AccessMode::SingleNodeReaderOnly),
        Mode::SingleNodeSingleWriter => Ok(AccessMode::SingleNodeSingleWriter),
        Mode::SingleNodeMultiWriter => Ok(AccessMode::SingleNodeMultiWriter),
        Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter => {
            let mode = mode.as_str_name();
            Err(match access {
                Access::Block => Refusal::SeveralNodesBlock { mode },
                Access::Mount { .. } => Refusal::SeveralNodesMount { mode },
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::FailureKind;
    use hotbay_api::csi::volume_capability::{AccessMode as WireMode, BlockVolume};

    const MODES: [Mode; 8] = [
        Mode::Unknown,
        Mode::SingleNodeWriter,
        Mode::SingleNodeReaderOnly,
        Mode::MultiNodeReaderOnly,
        Mode::MultiNodeSingleWriter,
        Mode::MultiNodeMultiWriter,
        Mode::SingleNodeSingleWriter,
        Mode::SingleNodeMultiWriter,
    ];

    fn block(mode: Mode) -> VolumeCapability {
        VolumeCapability {
            access_type: Some(AccessType::Block(BlockVolume {})),
            access_mode: Some(WireMode { mode: mode.into() }),
        }
    }

    fn mount(mode: Mode, mount: MountVolume) -> VolumeCapability {
        VolumeCapability { access_type: Some(AccessType::Mount(mount)), ..block(mode) }
    }

    fn ext4() -> MountVolume {
        MountVolume { fs_type: "ext4".to_owned(), ..MountVolume::default() }
    }

    #[test]
    fn modes_of_several_nodes_are_refused_with_words_and_all_others_taken() {
        for mode in MODES {
            for capability in [block(mode), mount(mode, ext4())] {
                let found = one(capability);
                match mode {
                    Mode::Unknown => assert_eq!(found, Err(Refusal::NoAccessMode)),
                    _ if mode.as_str_name().starts_with("MULTI") => {
                        let refused = found.unwrap_err();
                        assert!(refused.is_about_support(), "{refused:?}");
                        assert_eq!(refused.kind(), FailureKind::InvalidArgument);
                        assert!(refused.to_string().contains("ReadWriteOnce"), "{refused}");
                    }
                    _ => assert!(found.is_ok(), "{found:?}"),
                }
            }
        }
        let strange = VolumeCapability {
            access_mode: Some(WireMode { mode: 99 }),
            ..block(Mode::SingleNodeWriter)
        };
        assert_eq!(one(strange), Err(Refusal::UnknownAccessMode { number: 99 }));
    }

    #[test]
    fn empty_capabilities_say_what_is_missing() {
        let neither = VolumeCapability { access_type: None, ..block(Mode::SingleNodeWriter) };
        assert_eq!(one(neither), Err(Refusal::NoAccessType));
        let nobody = VolumeCapability { access_mode: None, ..block(Mode::SingleNodeWriter) };
        assert_eq!(one(nobody), Err(Refusal::NoAccessMode));
        assert!(matches!(all(vec![]), Err(Refusal::Missing { .. })));
    }

    #[test]
    fn capabilities_must_agree() {
        let writer = Mode::SingleNodeWriter;
        let both = all(vec![block(writer), mount(writer, ext4())]);
        assert_eq!(both, Err(Refusal::BlockAndMount));
        let xfs = MountVolume { fs_type: "xfs".to_owned(), ..MountVolume::default() };
        let two = all(vec![mount(writer, ext4()), mount(writer, xfs)]);
        assert_eq!(two, Err(Refusal::TwoFilesystems));
        let several = vec![block(Mode::SingleNodeMultiWriter), block(writer), block(writer)];
        let modes = vec![AccessMode::SingleNodeWriter, AccessMode::SingleNodeMultiWriter];
        assert_eq!(all(several), Ok((Access::Block, modes)));
    }

    /// The name becomes part of a program's name and of a command line.
    #[test]
    fn names_of_filesystems_and_options_are_plain() {
        let try_fs = |fs_type: &str| {
            filesystem(MountVolume { fs_type: fs_type.to_owned(), ..MountVolume::default() })
        };
        for good in ["", "ext4", "xfs", "fuse.sshfs", "f2fs"] {
            assert!(try_fs(good).is_ok(), "{good:?} was refused");
        }
        for bad in ["../../bin/sh", "-t", "ext4 -F", "Ext4", ".", "a\0"] {
            assert!(matches!(try_fs(bad), Err(Refusal::FsType { .. })), "{bad:?} was taken");
        }
        let flags = |flags: &[&str]| {
            let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
            filesystem(MountVolume { mount_flags, ..ext4() })
        };
        assert!(flags(&["noatime", "discard=async"]).is_ok());
        for bad in [&["a\nb"][..], &[""], &["a", "b\0"]] {
            assert!(flags(bad).is_err(), "{bad:?} was taken");
        }
        assert!(flags(&[&"x".repeat(TEXTS_BYTES_MAX + 1)]).is_err());
        let group = MountVolume { volume_mount_group: "1000".to_owned(), ..ext4() };
        assert_eq!(filesystem(group), Err(Refusal::MountGroup));
    }
}
