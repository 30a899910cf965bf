//! What an object is called. Names are for people and are not identity: that is in the status.
//!
//! An object is called what people call the thing, if Kubernetes takes that for a name and no other object has it;
//! else a letter and the beginning of the thing's id, and at last all of its id.

use crate::resource::{REGISTRY_NAME, Resource};

/// The longest name of an object.
const NAME_MAX: usize = 253;

/// The names to try for a new object, in this order.
pub(crate) fn candidates(resource: Resource, id: u128, wanted: Option<&str>) -> Vec<String> {
    let letter = match resource {
        Resource::Registry => return vec![REGISTRY_NAME.to_owned()],
        Resource::StorageNode => 'n',
        Resource::Drive => 'd',
        Resource::Volume => 'v',
        Resource::Attachment => 'a',
    };
    let id = format!("{id:032x}");
    let made = [format!("{letter}-{}", &id[..8]), format!("{letter}-{id}")];
    let wanted = wanted.filter(|name| is_object_name(name)).map(str::to_owned);
    let mut names: Vec<_> = wanted.into_iter().chain(made).collect();
    names.dedup();
    names
}

/// Whether Kubernetes takes it: small letters, digits, `-` and `.`, each part beginning and ending with a letter or
/// digit. So it can also stand in a path as it is, which a name that somebody else wrote into an object may not.
pub(crate) fn is_object_name(name: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.iter().all(|byte| plain(byte) || *byte == b'-')
            && bytes.first().is_some_and(plain)
            && bytes.last().is_some_and(plain)
    };
    name.len() <= NAME_MAX && name.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u128 = 0x7f3a_91c0_0000_0000_0000_0000_0000_0001;

    #[test]
    fn people_s_names_come_first_where_kubernetes_takes_them() {
        let made = ["v-7f3a91c0", "v-7f3a91c0000000000000000000000001"];
        assert_eq!(candidates(Resource::Volume, ID, Some("pvc-1"))[0], "pvc-1");
        assert_eq!(candidates(Resource::Volume, ID, Some("pvc-1"))[1..], made);
        for bad in ["", "Db", "a_b", "-a", "a-", "a..b", ".a", "ä", &"x".repeat(254)] {
            assert_eq!(candidates(Resource::Volume, ID, Some(bad)), made, "{bad:?}");
        }
        // The name that the registry has made for a drive is the first made here too, and is tried once.
        assert_eq!(candidates(Resource::Drive, ID, Some("d-7f3a91c0")).len(), 2);
        assert_eq!(candidates(Resource::Registry, 0, None), ["registry"]);
    }
}
