//! `csi_request` of crates/fuzz-targets under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hotbay_fuzz_targets::run("csi_request", data));
