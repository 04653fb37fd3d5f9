//! The master key in the operating system's keychain: `scripts/with-keychain` starts one for these tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use milepost_model::{Message, Role};
use milepost_store::{Append, Claim, MasterKey, MessageQuery, NewSession, Options, Store};

const SERVICE: &str = "milepost-test";

/// There is one, or it was said that there is none; the tests do not pass for want of a keychain.
fn has_keychain() -> bool {
    let told = std::env::var("MILEPOST_TEST_KEYCHAIN");
    told.expect("run it by scripts/with-keychain, or set MILEPOST_TEST_KEYCHAIN=none to leave it out") != "none"
}

fn options(key: Option<MasterKey>) -> Options {
    let mut options = Options::default();
    options.keys.master = key;
    options
}

#[tokio::test]
async fn a_store_is_opened_with_the_key_of_the_keychain() {
    if !has_keychain() {
        return;
    }
    assert!(MasterKey::from_keychain(SERVICE, "store").unwrap().is_none(), "nothing was put there yet");
    let key = MasterKey::from_bytes([7; 32]);
    key.to_keychain(SERVICE, "store").unwrap();

    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("milepost.db").display());
    let store = Store::open(&url, options(Some(key))).await.unwrap();
    let writer = store.create(NewSession::default(), &Claim::new("a test")).await.unwrap();
    writer.append(Append::new().message(Message::new(Role::User, "kept in secret"))).await.unwrap();
    let session = writer.id();
    writer.release().await.unwrap();
    store.close().await.unwrap();

    let found = MasterKey::from_keychain(SERVICE, "store").unwrap().expect("it was put there");
    let store = Store::open(&url, options(Some(found))).await.unwrap();
    let messages = store.messages(session, &MessageQuery::default()).await.unwrap();
    assert_eq!(messages[0].message.text(), "kept in secret");
    store.close().await.unwrap();
}

#[tokio::test]
async fn what_lies_in_the_keychain_and_is_no_key_is_named() {
    if !has_keychain() {
        return;
    }
    let entry = keyring::v1::Entry::new(SERVICE, "spoiled").unwrap();
    entry.set_password("not a key").unwrap();
    let error = MasterKey::from_keychain(SERVICE, "spoiled").unwrap_err().to_string();
    assert!(error.contains("milepost-test/spoiled"), "{error}");
    assert!(!error.contains("not a key"), "what lies there is not told: {error}");
}
