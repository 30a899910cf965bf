//! Mount flags as users write them, split into what the kernel takes in three places.
//!
//! Flags that are not known here go to the filesystem one by one, and it says itself what it does not know. Each is one
//! option: a comma would be a second one.

use rustix::mount::MountAttrFlags;

use super::{FilesystemError, FilesystemKind};

/// Most flags of one mount.
const MOST_FLAGS: usize = 64;

/// The options of one mount.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// Of the mount.
    pub(super) attributes: MountAttrFlags,
    /// Of the filesystem: a name, and a value if it has one.
    pub(super) filesystem: Vec<(String, Option<String>)>,
    pub(super) read_only: bool,
}

const ATTRIBUTES: [(&str, MountAttrFlags); 8] = [
    ("nosuid", MountAttrFlags::MOUNT_ATTR_NOSUID),
    ("nodev", MountAttrFlags::MOUNT_ATTR_NODEV),
    ("noexec", MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ("nodiratime", MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    ("nosymfollow", MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
    ("relatime", MountAttrFlags::MOUNT_ATTR_RELATIME),
    ("noatime", MountAttrFlags::MOUNT_ATTR_NOATIME),
    ("strictatime", MountAttrFlags::MOUNT_ATTR_STRICTATIME),
];

/// What is so without saying it.
const DEFAULTS: [&str; 7] = ["defaults", "rw", "suid", "dev", "exec", "async", "auto"];

/// Words that ask for another kind of mount.
const OTHER_MOUNTS: [&str; 9] =
    ["bind", "rbind", "move", "remount", "loop", "private", "shared", "slave", "unbindable"];

/// Splits the flags of a mount.
pub(super) fn split(
    kind: FilesystemKind,
    flags: &[String],
    read_only: bool,
) -> Result<Options, FilesystemError> {
    let mut options =
        Options { attributes: MountAttrFlags::empty(), filesystem: vec![], read_only };
    if flags.len() > MOST_FLAGS {
        return Err(refused(&flags[MOST_FLAGS], "there are too many options"));
    }
    let mut atimes = 0;
    for flag in flags {
        if flag.is_empty() || flag.chars().any(|c| c.is_control() || c == ',') {
            return Err(refused(flag, "one option has no comma and no control character"));
        }
        if OTHER_MOUNTS.contains(&flag.as_str()) {
            return Err(refused(flag, "it asks for another kind of mount"));
        }
        if let Some((_, attribute)) = ATTRIBUTES.iter().find(|(name, _)| name == flag) {
            atimes += u32::from(flag.ends_with("atime") && flag != "nodiratime");
            options.attributes |= *attribute;
        } else if flag == "ro" {
            options.read_only = true;
        } else if !DEFAULTS.contains(&flag.as_str()) {
            options.filesystem.push(match flag.split_once('=') {
                Some(("source", _)) => return Err(refused(flag, "the source is the volume")),
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (flag.clone(), None),
            });
        }
    }
    if atimes > 1 {
        return Err(refused(&flags.join(","), "only one of them can say how access is recorded"));
    }
    let has_nouuid = options.filesystem.iter().any(|(name, _)| name == "nouuid");
    if kind == FilesystemKind::Xfs && !has_nouuid {
        // A clone has the id of its source, and both are mounted on one node. Which is which is known by the volume.
        options.filesystem.push(("nouuid".into(), None));
    }
    if options.read_only {
        options.attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
        options.filesystem.push(("ro".into(), None));
    }
    Ok(options)
}

fn refused(option: &str, why: &str) -> FilesystemError {
    FilesystemError::Option { option: option.chars().take(200).collect(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(
        kind: FilesystemKind,
        flags: &[&str],
        read_only: bool,
    ) -> Result<Options, FilesystemError> {
        let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        split(kind, &flags, read_only)
    }

    #[test]
    fn each_flag_goes_where_the_kernel_takes_it() {
        let flags = ["noatime", "nodiratime", "data=writeback", "rw", "discard"];
        let options = of(FilesystemKind::Ext4, &flags, false).unwrap();
        let attributes = MountAttrFlags::MOUNT_ATTR_NOATIME | MountAttrFlags::MOUNT_ATTR_NODIRATIME;
        assert_eq!(options.attributes, attributes);
        let expected =
            [("data".to_owned(), Some("writeback".to_owned())), ("discard".to_owned(), None)];
        assert_eq!((options.filesystem.as_slice(), options.read_only), (&expected[..], false));
        for (flags, read_only) in [(&["ro"][..], false), (&["rw"], true)] {
            let options = of(FilesystemKind::Xfs, flags, read_only).unwrap();
            assert!(options.read_only, "asked for once is enough");
            assert_eq!(options.attributes, MountAttrFlags::MOUNT_ATTR_RDONLY);
            let names: Vec<_> = options.filesystem.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["nouuid", "ro"]);
        }
        let once = of(FilesystemKind::Xfs, &["nouuid"], false).unwrap();
        assert_eq!(once.filesystem.len(), 1);
    }

    #[test]
    fn no_flag_smuggles_another_one_in() {
        for bad in ["", "noatime,suid", "a\0b", "a\nb", "bind", "remount", "source=/dev/sda"] {
            let error = of(FilesystemKind::Ext4, &[bad], false).unwrap_err();
            assert!(matches!(error, FilesystemError::Option { .. }), "{bad:?}");
        }
        assert!(of(FilesystemKind::Ext4, &["noatime", "strictatime"], false).is_err());
        assert!(of(FilesystemKind::Ext4, &["discard"; 65], false).is_err());
    }
}
