//! Every target on its seeds, on the inputs that once broke it (`fuzz/found/TARGET/`), and on some thousand changed
//! copies of both: no fuzzer is needed, and no target can rot. `HOTBAY_SEED` gives another run; a failure names it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hotbay_fuzz_targets::{TARGETS, Target};

const CHANGED: usize = 4_000;
/// Opening a store reads all of it; it gets fewer.
const LONGEST: Duration = Duration::from_secs(5);

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

#[test]
fn every_target_takes_its_seeds_and_what_is_like_them() {
    let seed = std::env::var("HOTBAY_SEED").map_or(1, |text| text.parse().unwrap());
    let broken: Vec<_> = TARGETS.iter().filter_map(|target| first_broken(target, seed)).collect();
    assert!(broken.is_empty(), "HOTBAY_SEED={seed}\n{}", broken.join("\n"));
}

/// The first input that breaks a target, if one does.
fn first_broken(Target { name, run, seeds }: &Target, seed: u64) -> Option<String> {
    let mut inputs = seeds();
    assert!(!inputs.is_empty(), "{name} has no seeds");
    if let Ok(found) = std::fs::read_dir(fuzz_folder().join("found").join(name)) {
        inputs.extend(found.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()));
    }
    inputs.push(Vec::new());
    let mut random = Random(seed);
    let until = Instant::now() + LONGEST;
    let changed = std::iter::repeat_with(|| random.changed(&inputs)).take(CHANGED);
    let mut all = inputs.iter().cloned().chain(changed).take_while(|_| Instant::now() < until);
    let broken = all.find(|input| catch_unwind(|| run(input)).is_err())?;
    Some(format!("{name} fails on {}", broken.escape_ascii()))
}

/// Each target has its program in `fuzz/`, and each program its target.
#[test]
fn the_programs_of_the_fuzzer_are_those_of_the_table() {
    let folder = fuzz_folder();
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    for Target { name, .. } in &TARGETS {
        let program = std::fs::read_to_string(folder.join(format!("fuzz_targets/{name}.rs")));
        assert!(program.unwrap().contains(&format!("run(\"{name}\", data)")), "{name}");
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
    }
    assert_eq!(std::fs::read_dir(folder.join("fuzz_targets")).unwrap().count(), TARGETS.len());
}

/// splitmix64: the same inputs for the same seed, on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap()
    }

    /// One of the inputs with some bytes changed, removed, doubled, or replaced by a piece of another.
    fn changed(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut input = inputs[self.below(inputs.len())].clone();
        for _ in 0..=self.below(6) {
            let at = self.below(input.len() + 1);
            let length = self.below(17).min(input.len() - at);
            match self.below(5) {
                0 if at < input.len() => input[at] ^= 1 << self.below(8),
                1 => drop(input.drain(at..at + length)),
                2 => {
                    let piece = input[at..at + length].to_vec();
                    input.splice(at..at, piece);
                }
                3 => {
                    let other = &inputs[self.below(inputs.len())];
                    let from = self.below(other.len() + 1);
                    let piece = other[from..(from + 16).min(other.len())].to_vec();
                    input.splice(at..at + length, piece);
                }
                _ => {
                    let bytes = self.next().to_le_bytes();
                    input.splice(at..at + length, bytes);
                }
            }
        }
        input
    }
}
