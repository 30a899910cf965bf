//! The properties of an event, `KEY=value` each, and the few that are read. Called by [`super::event`] alone.
//!
//! What nobody here asks for is skipped as bytes, whatever is in it: the name of a keyboard in another encoding must
//! not cost an event. What is asked for is UTF-8, and a number where one belongs, or the event is refused.

use super::event::{
    Action, DevType, Event, Mapper, Origin, Refused, Signs, Subsystem, UnitAttention,
};
use crate::device::DeviceNumber;

/// Reads the properties of an event. Also returns its action as it was written. Of a key that comes twice the last
/// one counts, as it does for udev.
pub(super) fn fill(origin: Origin, properties: &[u8]) -> Result<(Event<'_>, &str), Refused> {
    let mut found = Found::default();
    let mut rest = properties;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == 0).ok_or(Refused::CutOff)?;
        let property = &rest[..end];
        rest = &rest[end + 1..];
        if let Some(at) = property.iter().position(|byte| *byte == b'=') {
            found.take(&property[..at], &property[at + 1..])?;
        }
    }
    found.event(origin)
}

#[derive(Default)]
struct Found<'a> {
    action: Option<&'a str>,
    devpath: Option<&'a str>,
    subsystem: Option<&'a str>,
    devtype: Option<&'a str>,
    devname: Option<&'a str>,
    major: Option<u32>,
    minor: Option<u32>,
    seqnum: Option<u64>,
    diskseq: Option<u64>,
    partn: Option<u32>,
    signs: Signs,
}

impl<'a> Found<'a> {
    fn take(&mut self, key: &[u8], value: &'a [u8]) -> Result<(), Refused> {
        match key {
            b"ACTION" => self.action = Some(text("ACTION", value)?),
            b"DEVPATH" => self.devpath = Some(text("DEVPATH", value)?),
            b"SUBSYSTEM" => self.subsystem = Some(text("SUBSYSTEM", value)?),
            b"DEVTYPE" => self.devtype = Some(text("DEVTYPE", value)?),
            b"DEVNAME" => {
                let name = text("DEVNAME", value)?;
                // udev writes the whole path of the node, the kernel only its name.
                self.devname = Some(name.strip_prefix("/dev/").unwrap_or(name));
            }
            b"MAJOR" => self.major = Some(number("MAJOR", value)?),
            b"MINOR" => self.minor = Some(number("MINOR", value)?),
            b"SEQNUM" => self.seqnum = Some(number("SEQNUM", value)?),
            b"DISKSEQ" => self.diskseq = Some(number("DISKSEQ", value)?),
            b"PARTN" => self.partn = Some(number("PARTN", value)?),
            b"RESIZE" => self.signs.resized = value == b"1",
            b"DISK_MEDIA_CHANGE" => self.signs.media_changed = value == b"1",
            b"DISK_EJECT_REQUEST" => self.signs.eject_requested = value == b"1",
            b"DISK_RO" => self.signs.read_only_set = true,
            b"SYNTH_UUID" => self.signs.synthetic = true,
            b"NVME_EVENT" => self.signs.nvme_event = true,
            b"SDEV_UA" => {
                self.signs.unit_attention = Some(UnitAttention::parse(text("SDEV_UA", value)?));
            }
            _ if key.starts_with(b"DM_") => self.take_mapper(key, value)?,
            _ => {}
        }
        Ok(())
    }

    fn take_mapper(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        let mapper = self.signs.mapper.get_or_insert_with(Mapper::default);
        match key {
            b"DM_COOKIE" => mapper.cookie = Some(number("DM_COOKIE", value)?),
            b"DM_UDEV_PRIMARY_SOURCE_FLAG" => mapper.primary_flag = Some(value == b"1"),
            b"DM_SUSPENDED" => mapper.suspended = value == b"1",
            _ => {}
        }
        Ok(())
    }

    fn event(self, origin: Origin) -> Result<(Event<'a>, &'a str), Refused> {
        let missing = |key| Refused::Missing { key };
        let action = self.action.ok_or(missing("ACTION"))?;
        let subsystem = Subsystem::parse(self.subsystem.ok_or(missing("SUBSYSTEM"))?);
        let number = match (self.major, self.minor) {
            (Some(major), Some(minor)) => Some(DeviceNumber { major, minor }),
            (None, _) if subsystem == Subsystem::Block => return Err(missing("MAJOR")),
            (_, None) if subsystem == Subsystem::Block => return Err(missing("MINOR")),
            (None, _) | (_, None) => None,
        };
        let event = Event {
            origin,
            action: Action::parse(action),
            devpath: self.devpath.ok_or(missing("DEVPATH"))?,
            subsystem,
            devtype: self.devtype.map_or(DevType::Other, DevType::parse),
            devname: self.devname,
            number,
            seqnum: self.seqnum,
            diskseq: self.diskseq,
            partn: self.partn,
            signs: self.signs,
        };
        Ok((event, action))
    }
}

fn text<'a>(key: &'static str, value: &'a [u8]) -> Result<&'a str, Refused> {
    std::str::from_utf8(value).map_err(|_| Refused::NotUtf8 { key })
}

fn number<N: std::str::FromStr>(key: &'static str, value: &[u8]) -> Result<N, Refused> {
    text(key, value)?.parse().map_err(|_| Refused::NotANumber { key })
}
