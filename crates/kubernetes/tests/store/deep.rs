//! A status that somebody has made deeper than JSON is read here.
//!
//! The story: the server takes such a status. The whole page that the object stood on could not be read then, so no
//! controller could load, and nobody led.

use hotbay_registry::{Kind, Store};
use serde_json::json;

use crate::behaviour::{Place, key, load, put};
use crate::people::People;
use crate::server;

#[test]
fn a_status_that_is_too_deep_counts_as_changed_by_hand() {
    for levels in [96, 122, 123, 124, 125, 126, 130, 200, 500] {
        let server = server();
        let (first, second) = (key(Kind::Drive, 1 << 96), key(Kind::Drive, 2 << 96));
        let mut before = server.open();
        before.commit(&[put(first, r#"{"step":1}"#), put(second, r#"{"step":1}"#)]).unwrap();
        let people = People::on(&server);
        let id = json!(format!("{:032x}", first.id));
        let drive = people.list("drives").into_iter().find(|drive| drive["status"]["id"] == id);
        let name = drive.unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
        server.fake.deepen("drives", &name, levels);
        // One that starts leaves it out, and nothing else.
        let loaded = load(&mut server.open());
        assert_eq!(loaded.into_keys().collect::<Vec<_>>(), [second], "{levels}");
        // One that runs writes over it.
        before.commit(&[put(first, r#"{"step":2}"#)]).unwrap();
        assert_eq!(people.named("drives", &name)["status"]["record"], json!({ "step": 2 }));
        assert_eq!(load(&mut server.open()).len(), 2, "{levels}");
    }
}
