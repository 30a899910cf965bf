//! What people type: ids, names, sizes, addresses, join tokens, filters.

use hotbay_api::token::{JoinToken, check_address};
use hotbay_core::cluster::StateHash;
use hotbay_core::filter::{Pattern, Size};
use hotbay_core::ids::{DriveId, NodeName};
use hotbay_node::fuzzing as node;

use crate::assert_plain;

// The program has no library: this is its own source, and no copy.
#[path = "../../hotbay/src/run/size.rs"]
mod size;

/// One text as each of them.
pub(crate) fn names(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match text.parse::<DriveId>() {
        Ok(id) => assert_eq!(id.to_string(), text.to_lowercase()),
        Err(refused) => assert_plain(refused),
    }
    match text.parse::<NodeName>() {
        Ok(name) => {
            assert_eq!(name.as_str(), text);
            assert!(!text.contains(['/', ':', '\0']), "{text:?} would be more than a name");
        }
        Err(refused) => assert_plain(refused),
    }
    match size::parse(&text) {
        Ok(bytes) => {
            let shown = size::exact(bytes).replace(' ', "").replace("bytes", "");
            assert_eq!(size::parse(&shown), Ok(bytes));
        }
        Err(refused) => assert_plain(refused),
    }
    if let Err(refused) = check_address(&text) {
        assert_plain(refused);
    }
    match text.parse::<Size>() {
        Ok(size) => assert_eq!(size.to_string().parse(), Ok(size)),
        Err(refused) => assert_plain(refused),
    }
    match text.parse::<StateHash>() {
        Ok(state) => assert_eq!(state.to_string(), text),
        Err(refused) => assert_plain(refused),
    }
}

/// A file with filters; and the same bytes as a pattern.
pub(crate) fn filters(data: &[u8]) {
    if let Err(refused) = node::read_filters(data) {
        assert_plain(refused);
    }
    let text = String::from_utf8_lossy(data);
    let (pattern, name) = text.split_once('\n').unwrap_or((&text, ""));
    match pattern.parse::<Pattern>() {
        Ok(pattern) => {
            assert_eq!(pattern.to_string().parse(), Ok(pattern.clone()));
            pattern.fits(name);
            pattern.fits_any_case(name);
        }
        Err(refused) => assert_plain(refused),
    }
}

pub(crate) fn filters_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "[[filter]]\nname = 'no-usb'\nexclude = { transport = 'usb', removable = true }\n",
        "[[filter]]\ninclude = { media = ['NVMe', 'SSD'], min-size = '1.92TB', model = 'ACME*' }\n",
        "[[filter]]\nexclude = { path = '/dev/sd[!a-c]', by-id = 'wwn-*', max-size = '1TiB' }\n",
        "/dev/nvme*n[1-9]?\n/dev/nvme10n1p",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

pub(crate) fn names_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "7f3a91c07f3a91c07f3a91c07f3a91c0",
        "rack1.node-07",
        "1GiB",
        "1.92TB",
        "s-0152ee94c346268c",
        "256M",
        "18446744073709551615",
        "[2001:db8::7]:7443",
        "storage.example:7443",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

/// A token as it is; and with its checksum mended, so that what lies behind it is reached.
pub(crate) fn token(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let said = text.trim().rsplit_once(',').map_or(&*text, |(said, _)| said).trim_start();
    let mended = format!("{said},{:08x}", crc32c::crc32c(said.as_bytes()));
    for text in [&*text, &mended] {
        match text.parse::<JoinToken>() {
            Ok(token) => {
                assert!(JoinToken::is_meant(text.trim()));
                assert_eq!(check_address(&token.address), Ok(()));
                assert_eq!(token.to_string().parse(), Ok(token));
            }
            Err(refused) => assert_plain(refused),
        }
    }
}

pub(crate) fn token_seeds() -> Vec<Vec<u8>> {
    let addresses = ["192.0.2.7:7443", "[2001:db8::7]:7443", "storage.example:1"];
    let token = |address: &str| JoinToken {
        address: address.to_owned(),
        authority: [0xab; 32],
        secret: [7; 32],
    };
    addresses.iter().map(|address| token(address).to_string().into_bytes()).collect()
}
