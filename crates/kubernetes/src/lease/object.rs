//! The Lease as the API server has it (`coordination.k8s.io/v1`). Where the leader is reached stands in annotations.

use std::time::Duration;

use hotbay_control::LeaderAt;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Contender;
use super::rule::Seen;

const AGENTS: &str = "hotbay.dev/agents";
const CLIENTS: &str = "hotbay.dev/clients";
/// Who wrote those two: a holder that was put there by hand is reached nowhere.
const HOLDER: &str = "hotbay.dev/holder";

/// One that says nothing of its duration is held like this.
const USUAL_DURATION: Duration = Duration::from_secs(15);

/// The server takes no higher number, and nobody could take the Lease.
const MOST_TRANSITIONS: i64 = i32::MAX as i64;

/// No controller asks for a longer one; whoever wrote that, nobody waits for longer.
const LONGEST_DURATION: Duration = Duration::from_secs(300);

pub(super) fn all(contender: &Contender) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", contender.namespace)
}

pub(super) fn path(contender: &Contender) -> String {
    format!("{}/{}", all(contender), contender.lease)
}

/// What decides. A holder that is not there any more, and did not give the Lease back itself, was taken out by hand: it
/// counts, because it may have been renewed just before and does not know yet.
pub(super) fn seen(lease: &Value) -> Seen {
    let spec = &lease["spec"];
    let held_by = [&spec["holderIdentity"], &lease["metadata"]["annotations"][HOLDER]];
    let mut holders = held_by.into_iter().filter_map(Value::as_str);
    let seconds = spec["leaseDurationSeconds"].as_u64().map(Duration::from_secs);
    Seen {
        version: lease["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned(),
        holder: holders.find(|holder| !holder.is_empty()).unwrap_or_default().to_owned(),
        duration: seconds
            .filter(|seconds| !seconds.is_zero())
            .unwrap_or(USUAL_DURATION)
            .min(LONGEST_DURATION),
    }
}

/// Whether a controller of ours wrote it; people, and other programs, leave no word of where they are reached.
pub(super) fn is_of_a_controller(lease: &Value) -> bool {
    let written_by = lease["metadata"]["annotations"][HOLDER].as_str().unwrap_or_default();
    written_by == seen(lease).holder
}

/// Where its holder is reached, if it has one.
pub(super) fn reached(lease: &Value) -> Option<LeaderAt> {
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    if holder.is_empty() || !is_of_a_controller(lease) {
        return None;
    }
    let told =
        |key: &str| lease["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned();
    Some(LeaderAt { agents: told(AGENTS), clients: told(CLIENTS) })
}

/// The Lease in our hands, over what was there. What others wrote into it stays.
pub(super) fn held(contender: &Contender, before: Option<&Value>) -> Value {
    let mut lease = before.cloned().unwrap_or_else(|| {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": contender.lease, "namespace": contender.namespace },
            "spec": {},
        })
    });
    let now = time(contender);
    let ours = lease["spec"]["holderIdentity"] == contender.identity.as_str();
    if !ours {
        let before = lease["spec"]["leaseTransitions"].as_i64();
        let transitions = before.map_or(0, |count| count.clamp(-1, MOST_TRANSITIONS - 1) + 1);
        lease["spec"]["leaseTransitions"] = json!(transitions);
        lease["spec"]["acquireTime"] = json!(now);
    }
    lease["spec"]["holderIdentity"] = json!(contender.identity);
    lease["spec"]["leaseDurationSeconds"] = json!(contender.duration.as_secs());
    lease["spec"]["renewTime"] = json!(now);
    lease["metadata"]["annotations"][AGENTS] = json!(contender.reached_at.agents);
    lease["metadata"]["annotations"][CLIENTS] = json!(contender.reached_at.clients);
    lease["metadata"]["annotations"][HOLDER] = json!(contender.identity);
    lease
}

/// The Lease given back: the next one need not wait.
pub(super) fn given_back(contender: &Contender, before: &Value) -> Value {
    let mut lease = before.clone();
    lease["spec"]["holderIdentity"] = json!("");
    lease["metadata"]["annotations"][HOLDER] = json!("");
    lease["spec"]["renewTime"] = json!(time(contender));
    lease
}

/// The format of Kubernetes for these: with microseconds.
fn time(contender: &Contender) -> String {
    let millis = i64::try_from((contender.wall_ms)()).unwrap_or_default();
    let now = Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH);
    now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contender() -> Contender {
        Contender {
            namespace: "hotbay".into(),
            lease: "hotbay-controller".into(),
            identity: "pod-1_x".into(),
            reached_at: LeaderAt { agents: "10.0.0.1:7443".into(), clients: String::new() },
            duration: Duration::from_secs(15),
            wall_ms: || 1_800_000_000_123,
        }
    }

    #[test]
    fn what_is_held_reads_back_and_can_be_given_back() {
        let contender = contender();
        let lease = held(&contender, None);
        assert_eq!(seen(&lease).holder, "pod-1_x");
        assert_eq!(reached(&lease), Some(contender.reached_at.clone()));
        assert_eq!(lease["spec"]["renewTime"], "2027-01-15T08:00:00.123000Z");
        assert_eq!(lease["spec"]["leaseTransitions"], 0);
        let again = held(&contender, Some(&lease));
        assert_eq!(again["spec"]["leaseTransitions"], 0, "a renewal is no transition");
        let free = given_back(&contender, &again);
        assert_eq!(reached(&free), None);
        assert_eq!(held(&contender, Some(&free))["spec"]["leaseTransitions"], 1);
    }

    /// Somebody emptied it by hand, and the next controller took it at once, while the leader still answered.
    #[test]
    fn a_holder_that_was_taken_out_by_hand_counts_and_one_that_gave_back_does_not() {
        let contender = contender();
        let mut lease = held(&contender, None);
        assert_eq!(seen(&given_back(&contender, &lease)).holder, "");
        for emptied in [json!(""), Value::Null] {
            lease["spec"]["holderIdentity"] = emptied;
            assert_eq!(seen(&lease).holder, "pod-1_x");
            assert_eq!(reached(&lease), None);
        }
    }

    /// A Lease stolen by hand: whatever stands there is read as something.
    #[test]
    fn nonsense_in_a_lease_is_a_holder_that_must_time_out() {
        let lease = json!({ "metadata": { "resourceVersion": "3" }, "spec": {
            "holderIdentity": "somebody", "leaseDurationSeconds": 0 } });
        let seen = seen(&lease);
        assert_eq!((seen.holder.as_str(), seen.duration), ("somebody", USUAL_DURATION));
    }

    #[test]
    fn a_count_at_its_end_stays_there() {
        let lease = json!({ "spec": { "holderIdentity": "x", "leaseTransitions": i32::MAX } });
        assert_eq!(held(&contender(), Some(&lease))["spec"]["leaseTransitions"], i32::MAX);
    }

    #[test]
    fn nobody_waits_for_years() {
        let lease = json!({ "metadata": { "resourceVersion": "3" }, "spec": {
            "holderIdentity": "somebody", "leaseDurationSeconds": i32::MAX } });
        assert_eq!(seen(&lease).duration, LONGEST_DURATION);
    }
}
