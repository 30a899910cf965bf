//! `http_volumes` of crates/fuzz-targets under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hotbay_fuzz_targets::run("http_volumes", data));
