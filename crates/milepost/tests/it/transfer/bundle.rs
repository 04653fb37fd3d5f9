//! Bundles: what goes in comes out, and what was changed on the way is refused.

use std::io::{Cursor, Read as _};

use milepost::model::{CheckpointId, Message, Role, SessionId};
use milepost::store::ed25519_dalek::SigningKey;
use milepost::store::{Append, Conflict, MarkQuery, MessageQuery, NewSession, Store};
use milepost::transfer::{BundleOptions, Ids, ImportOptions, Imported, check_bundle, export_bundle, import_bundle};
use milepost::{Error, Result};
use proptest::prelude::*;
use serde_json::json;

use crate::transfer::scene::{Dice, Scene, any_session, claim, grow};

pub async fn bundle(store: &Store, id: SessionId) -> Vec<u8> {
    let mut out = Vec::new();
    export_bundle(store, id, &mut out, &BundleOptions::default(), &mut |_| {}).await.unwrap();
    out
}

pub async fn import(store: &Store, bytes: &[u8], options: &ImportOptions) -> Result<Imported> {
    import_bundle(store, Cursor::new(bytes), options, &claim(), &mut |_| {}).await
}

fn remap() -> ImportOptions {
    let mut options = ImportOptions::default();
    options.ids = Ids::Remap;
    options
}

/// What does not depend on ids: messages, times, marks and the state at each of them.
async fn content(store: &Store, id: SessionId) -> String {
    let mut session = store.session(id).await.unwrap();
    session.extra.remove("branched_from");
    let mut out = format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}\n",
        session.status,
        session.created,
        session.active,
        session.counts,
        session.checkpoints,
        session.title,
        session.tags,
        session.extra,
        session.preview
    );
    for found in store.messages(id, &MessageQuery::default()).await.unwrap() {
        out += &format!("{} {:?} {:?}\n", found.at.seq, found.time, found.message);
    }
    for trashed in [false, true] {
        for mark in store.marks(id, &MarkQuery { trashed, ..MarkQuery::default() }).await.unwrap() {
            let mut checkpoint = mark.checkpoint.clone();
            checkpoint.extra.remove("copied_from");
            checkpoint.id = CheckpointId::from_bytes([0; 16]);
            let state = store.load(mark.checkpoint.id).await.unwrap().state;
            out += &format!("{} {:?} {checkpoint:?} {state:?} {:?}\n", mark.at.seq, mark.time, mark.trashed);
        }
    }
    out + &format!("{:?}", store.state(id).await.unwrap())
}

async fn own_ids(store: &Store, of: SessionId) -> Vec<CheckpointId> {
    let marks = store.marks(of, &MarkQuery::default()).await.unwrap();
    marks.iter().filter(|mark| mark.session == of).map(|mark| mark.checkpoint.id).collect()
}

async fn goes_round(seed: u64) {
    let scene = Scene::new(seed);
    let dice = Dice::new(seed);
    let from = if dice.below(2) == 0 { scene.memory().await } else { scene.encrypted().await };
    let id = any_session(&scene, &from, &dice).await;
    let mut ids = vec![id];
    let marks = from.marks(id, &MarkQuery::default()).await.unwrap();
    if let Some(mark) = marks.get(dice.below(marks.len() as u64) as usize) {
        scene.clock.advance_ms(77);
        let branch = from.branch(mark.at, NewSession::default(), &claim()).await.unwrap();
        grow(&scene, &branch, &dice, dice.below(8)).await;
        ids.push(branch.id());
    }
    let whole = from.verify().await.unwrap();
    assert!(whole.is_whole(), "the source: {:?}", whole.problems);
    for id in ids {
        let bytes = bundle(&from, id).await;
        scene.clock.advance_ms(3_600_000);
        for to in [scene.memory().await, scene.sqlite(&format!("{id}.db")).await, scene.encrypted().await] {
            let imported = import(&to, &bytes, &ImportOptions::default()).await.unwrap();
            assert_eq!(imported.session, id);
            assert_eq!(content(&to, id).await, content(&from, id).await);
            let (here, there) = (own_ids(&from, id).await, own_ids(&to, id).await);
            assert!(here.iter().all(|id| there.contains(id)));
            assert_eq!(bundle(&to, id).await, bytes, "the same bytes again");
            let other = import(&to, &bytes, &remap()).await.unwrap().session;
            assert_ne!(other, id);
            assert_eq!(content(&to, other).await, content(&from, id).await);
            let verified = to.verify().await.unwrap();
            assert!(verified.is_whole(), "{:?}", verified.problems);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_session_goes_through_a_bundle_unchanged(seed in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(goes_round(seed));
    }
}

#[tokio::test]
async fn a_branch_and_its_parent_can_be_imported_in_any_order() {
    let scene = Scene::new(5);
    let dice = Dice::new(5);
    let from = scene.memory().await;
    let parent = any_session(&scene, &from, &dice).await;
    let writer = from.write(parent, &claim()).await.unwrap();
    grow(&scene, &writer, &dice, 12).await;
    let at = from.marks(parent, &MarkQuery::default()).await.unwrap()[0].at;
    let branch = from.branch(at, NewSession::default(), &claim()).await.unwrap().id();
    let bundles = [bundle(&from, branch).await, bundle(&from, parent).await];
    let to = scene.memory().await;
    for bytes in &bundles {
        import(&to, bytes, &ImportOptions::default()).await.unwrap();
    }
    let shown = to.session(branch).await.unwrap();
    assert_eq!(shown.branch, None);
    assert_eq!(shown.extra["branched_from"]["session"], json!(parent));
    assert_eq!(shown.extra["branched_from"]["at"], json!(at));
    assert!(to.verify().await.unwrap().is_whole());
}

#[tokio::test]
async fn ids_that_are_taken_are_refused_and_nothing_is_left() {
    let scene = Scene::new(6);
    let from = scene.memory().await;
    let id = any_session(&scene, &from, &Dice::new(6)).await;
    let bytes = bundle(&from, id).await;
    let again = import(&from, &bytes, &ImportOptions::default()).await.unwrap_err();
    assert!(
        matches!(&again, Error::Store(milepost::store::Error::Conflict(Conflict::Exists { what: "session", .. }))),
        "{again}"
    );
    assert_eq!(from.backend().session_ids(from.workspace()).await.unwrap(), vec![id]);
}

fn unpack(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8(zstd::decode_all(bytes).unwrap()).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn pack(lines: &[String]) -> Vec<u8> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    zstd::encode_all(text.as_bytes(), 3).unwrap()
}

async fn refused(to: &Store, bytes: &[u8]) -> String {
    let error = import(to, bytes, &ImportOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::Import { .. }), "{error}");
    assert!(to.backend().session_ids(to.workspace()).await.unwrap().is_empty());
    assert!(to.backend().list_blobs(to.workspace(), None, 10).await.unwrap().is_empty());
    error.to_string()
}

async fn scene_bundle(scene: &Scene) -> (SessionId, Vec<u8>) {
    let dice = Dice::new(7);
    let from = scene.memory().await;
    let id = any_session(scene, &from, &dice).await;
    let writer = from.write(id, &claim()).await.unwrap();
    grow(scene, &writer, &dice, 20).await;
    (id, bundle(&from, id).await)
}

#[tokio::test]
async fn a_bundle_whose_lines_were_touched_is_refused_and_names_the_entry() {
    let scene = Scene::new(7);
    let (_, good) = scene_bundle(&scene).await;
    let lines = unpack(&good);
    let to = scene.memory().await;
    let entries: Vec<usize> = (0..lines.len()).filter(|n| lines[*n].starts_with("{\"entry\"")).collect();
    for &at in entries.iter().step_by(3) {
        let value: serde_json::Value = serde_json::from_str(&lines[at]).unwrap();
        let name = format!("entry {} ({})", value["entry"]["seq"], value["entry"]["kind"].as_str().unwrap());
        let mut changed = lines.clone();
        changed[at] = changed[at].replacen("\"time\":1", "\"time\":2", 1);
        assert!(refused(&to, &pack(&changed)).await.contains(&name));
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at].clone());
        assert!(refused(&to, &pack(&doubled)).await.contains(&name));
        if let Some(&next) = entries.iter().find(|next| **next == at + 1) {
            let value: serde_json::Value = serde_json::from_str(&lines[next]).unwrap();
            let name = format!("entry {} (", value["entry"]["seq"]);
            let mut swapped = lines.clone();
            swapped.swap(at, next);
            assert!(refused(&to, &pack(&swapped)).await.contains(&name));
            let mut dropped = lines.clone();
            dropped.remove(at);
            assert!(refused(&to, &pack(&dropped)).await.contains(&name));
        }
        assert!(refused(&to, &pack(&lines[..=at])).await.contains(&format!("it ends after {name}")));
    }
    let mut more = lines.clone();
    more.push(lines[1].clone());
    assert!(refused(&to, &pack(&more)).await.contains("after the end"));
    let mut twice = good.clone();
    twice.extend_from_slice(&good);
    assert!(refused(&to, &twice).await.contains("after the end"));
    for at in [0, lines.len() - 1] {
        let mut changed = lines.clone();
        changed[at] = changed[at].replacen("\"entries\":", "\"entries\":1", 1);
        refused(&to, &pack(&changed)).await;
    }
    import(&to, &good, &ImportOptions::default()).await.unwrap();
}

#[tokio::test]
async fn every_flipped_byte_of_the_file_is_noticed() {
    let scene = Scene::new(8);
    let from = scene.memory().await;
    let id = any_session(&scene, &from, &Dice::new(8)).await;
    let good = bundle(&from, id).await;
    let to = scene.memory().await;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        // A bit that unpacks to the same lines has changed nothing.
        let same =
            zstd::decode_all(bad.as_slice()).is_ok_and(|plain| plain == zstd::decode_all(good.as_slice()).unwrap());
        if !same {
            refused(&to, &bad).await;
        }
    }
    for cut in 0..good.len() {
        refused(&to, &good[..cut]).await;
    }
}

#[tokio::test]
async fn a_chain_made_anew_is_caught_by_the_signature() {
    let scene = Scene::new(9);
    let from = scene.memory().await;
    let id = any_session(&scene, &from, &Dice::new(9)).await;
    let key = SigningKey::from_bytes(&[3; 32]);
    let mut options = BundleOptions::default();
    options.sign = Some(key.clone());
    let mut signed = Vec::new();
    export_bundle(&from, id, &mut signed, &options, &mut |_| {}).await.unwrap();
    let mut asked = ImportOptions::default();
    asked.signed_by = Some(key.verifying_key());
    let to = scene.memory().await;
    let plain = bundle(&from, id).await;
    assert!(import(&to, &plain, &asked).await.unwrap_err().to_string().contains("not signed"));
    let mut other = ImportOptions::default();
    other.signed_by = Some(SigningKey::from_bytes(&[4; 32]).verifying_key());
    assert!(import(&to, &signed, &other).await.unwrap_err().to_string().contains("not the key"));
    let checked = check_bundle(Cursor::new(&signed), &asked).unwrap();
    assert_eq!(checked.signed_by, Some(key.verifying_key()));
    import(&to, &signed, &asked).await.unwrap();
}

#[tokio::test]
async fn garbage_and_bombs_are_refused() {
    let scene = Scene::new(10);
    let to = scene.memory().await;
    let dice = Dice::new(10);
    for size in [0, 1, 3, 4, 100, 100_000] {
        let noise: Vec<u8> = (0..size).map(|_| dice.below(256) as u8).collect();
        assert!(refused(&to, &noise).await.contains("no bundle"));
    }
    let zeros = zstd::encode_all(std::io::repeat(0).take(200 << 20), 3).unwrap();
    let why = refused(&to, &zeros).await;
    assert!(why.contains("max_line_bytes") || why.contains("max_ratio"), "{why}");
    let newlines = zstd::encode_all(std::io::repeat(b'\n').take(1 << 20), 3).unwrap();
    assert!(refused(&to, &newlines).await.contains("no bundle"));
    let (_, good) = scene_bundle(&scene).await;
    let mut small = ImportOptions::default();
    small.limits.max_bundle_bytes = 1000;
    let why = import(&to, &good, &small).await.unwrap_err().to_string();
    assert!(why.contains("max_bundle_bytes") && why.contains("nothing was imported"), "{why}");
    let newer = good_with(&good, "\"version\":1", "\"version\":3");
    assert!(refused(&to, &newer).await.contains("use a newer Milepost"));
}

fn good_with(good: &[u8], old: &str, new: &str) -> Vec<u8> {
    let mut lines = unpack(good);
    lines[0] = lines[0].replacen(old, new, 1);
    pack(&lines)
}

#[tokio::test]
async fn a_large_session_goes_through() {
    let scene = Scene::new(11);
    let from = scene.memory().await;
    let writer = from.create(NewSession::default(), &claim()).await.unwrap();
    let dice = Dice::new(11);
    for _ in 0..1500 {
        writer.append(Append::new().message(dice.message()).message(dice.message())).await.unwrap();
    }
    let blob = writer.put_blob(&vec![1; 3 << 20]).await.unwrap();
    let event = milepost::model::Event::new("files", json!({}));
    writer.append(Append::new().event_with(event, vec![blob])).await.unwrap();
    let bytes = bundle(&from, writer.id()).await;
    let to = scene.sqlite("large.db").await;
    let mut seen = 0;
    import_bundle(&to, Cursor::new(&bytes), &ImportOptions::default(), &claim(), &mut |p| seen = p.entries)
        .await
        .unwrap();
    assert_eq!(seen, 3002);
    assert_eq!(content(&to, writer.id()).await, content(&from, writer.id()).await);
}

/// The session that the golden bundle was made of.
async fn golden_session(scene: &Scene) -> (Store, SessionId) {
    let from = scene.memory().await;
    let dice = Dice::new(2026);
    let id = any_session(scene, &from, &dice).await;
    let writer = from.write(id, &claim()).await.unwrap();
    grow(scene, &writer, &dice, 40).await;
    let at = from.marks(id, &MarkQuery::default()).await.unwrap()[0].at;
    let branch = from.branch(at, NewSession::default(), &claim()).await.unwrap();
    grow(scene, &branch, &dice, 10).await;
    (from, branch.id())
}

#[tokio::test]
async fn bundles_of_version_1_stay_readable_and_are_still_written_so() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/transfer/golden/version-1.milepost");
    let scene = Scene::new(2026);
    let (from, id) = golden_session(&scene).await;
    let written = bundle(&from, id).await;
    if std::env::var_os("MILEPOST_WRITE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &written).unwrap();
    }
    let golden = std::fs::read(&path).unwrap();
    assert_eq!(unpack(&golden), unpack(&written));
    let to = scene.memory().await;
    assert_eq!(import(&to, &golden, &ImportOptions::default()).await.unwrap().session, id);
    assert_eq!(content(&to, id).await, content(&from, id).await);
}

#[tokio::test]
async fn a_bundle_that_is_cut_off_says_so_and_how_much_is_whole() {
    let scene = Scene::new(31);
    let from = scene.memory().await;
    let dice = Dice::new(31);
    let id = any_session(&scene, &from, &dice).await;
    let writer = from.write(id, &claim()).await.unwrap();
    // So much noise that it is packed in several blocks.
    for _ in 0..40 {
        let noise: String = (0..20_000).map(|_| char::from(b'a' + dice.below(26) as u8)).collect();
        writer.append(Append::new().message(Message::new(Role::User, noise))).await.unwrap();
    }
    writer.release().await.unwrap();
    let good = bundle(&from, id).await;
    let to = scene.memory().await;
    let total = check_bundle(Cursor::new(&good), &ImportOptions::default()).unwrap().entries;
    let mut most = 0;
    for part in 1..20 {
        let said = refused(&to, &good[..good.len() * part / 20]).await;
        assert!(said.contains("the file is cut off"), "{said}");
        assert!(said.contains("entries are whole"), "{said}");
        if let Some((before, _)) = said.split_once(&format!(" of {total} entries are whole")) {
            let whole: u64 = before.rsplit(' ').next().unwrap().parse().unwrap();
            assert!((most..total).contains(&whole), "{said}");
            most = whole;
        }
    }
    assert!(most > total / 2, "{most} of {total}");
    assert!(refused(&to, &good[..good.len() - 1]).await.contains("the file is cut off"));
}
