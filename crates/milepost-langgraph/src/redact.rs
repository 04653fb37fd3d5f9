//! Late redaction: a secret is taken out of threads' values where they are whole.
//!
//! A log has of a value what changed, and MessagePack tells how long each text is: nothing can be replaced in there in place. So
//! every checkpoint is made whole, what its values hold is replaced, and a thread that held it is written anew, with the same
//! checkpoints, as pruning does; the old log goes.

use std::sync::Arc;

use milepost_model::{Body, Position, Seq, SessionId};
use milepost_store::backend::Kinds;
use milepost_store::{Error, PassedOver, Redacted, Redactor, Result, SessionQuery};

use crate::anew::Change;
use crate::msgpack::{self, from_message};
use crate::read::{Found, FoundValue, FoundWrite, record_of, writes_of};
use crate::record::Form;
use crate::thread::{AGENT, LEFT, Saver, ThreadKey};

impl Saver {
    /// Replaces what `redactor` finds in every thread of the store. With `dry_run` it only counts. To be done before
    /// [`Store::redact`](milepost_store::Store::redact), which passes over the sessions of threads.
    pub async fn redact(&self, redactor: &Redactor, dry_run: bool) -> Result<Redacted> {
        let mut redacted = Redacted::default();
        if !dry_run {
            // What a process that was killed left behind may hold it.
            self.sweep(None, 0).await?;
        }
        for (key, session) in self.sessions(None, None).await? {
            match Box::pin(self.redact_thread(&key, session, redactor, dry_run)).await {
                Ok(Ok(None)) | Err(Error::NotFound { .. }) => {}
                Ok(Ok(Some((session, checkpoints)))) => {
                    redacted.sessions.push(session);
                    redacted.checkpoints += checkpoints;
                }
                Ok(Err(why)) => redacted.passed_over.push(PassedOver::of_adapter(session, why)),
                Err(error) => redacted.passed_over.push(PassedOver::by(session, &error).ok_or(error)?),
            }
        }
        for (session, why) in self.beside_threads(dry_run).await? {
            match self.is_in_log(session, redactor).await {
                Ok(false) | Err(Error::NotFound { .. }) => {}
                Ok(true) => redacted.passed_over.push(PassedOver::of_adapter(session, why)),
                Err(error) => redacted.passed_over.push(PassedOver::by(session, &error).ok_or(error)?),
            }
        }
        Ok(redacted)
    }

    /// Sessions that were threads', or are copies of such, and what they are: nothing can be written in their place.
    async fn beside_threads(&self, dry_run: bool) -> Result<Vec<(SessionId, &'static str)>> {
        let mut found = Vec::new();
        for trashed in [false, true] {
            let agent = Some(AGENT.to_owned());
            let mut query = SessionQuery { agent, trashed, by_creation: true, ..SessionQuery::default() };
            loop {
                let page = self.store.sessions(&query).await?;
                for session in page.sessions.into_iter().filter(|session| session.branch.is_none()) {
                    let part = |name: &str| session.extra.get("langgraph")?.get(name)?.as_str().map(str::to_owned);
                    let (Some(thread), Some(namespace)) = (part("thread"), part("namespace")) else { continue };
                    // One that was left goes, unless that could not be done.
                    if session.hidden || dry_run && session.extra.contains_key(LEFT) {
                        continue;
                    }
                    let key = ThreadKey::new(thread, namespace);
                    if self.resolve(&key).await? != Some(session.id) {
                        found.push((session.id, "it is a copy that no thread goes on from: delete it"));
                    }
                }
                match page.next {
                    Some(next) => query.after = Some(next),
                    None => break,
                }
            }
        }
        Ok(found)
    }

    /// Whether messages, writes or marks hold it, also those that no checkpoint has any more, and names and the like.
    async fn is_in_log(&self, session: SessionId, redactor: &Redactor) -> Result<bool> {
        if self.store.holds(session, redactor).await? {
            return Ok(true);
        }
        let is_in = |bytes: &[u8]| !matches!(msgpack::clean(bytes, redactor), Ok(None));
        for line in self.store.backend().timelines(self.store.workspace(), session).await? {
            let Some(end) = line.length.checked_sub(1).filter(|end| *end >= line.begins()) else { continue };
            let at = Position { timeline: line.id, seq: Seq(end) };
            for entry in self.store.entries_at(at, Seq(line.begins()), Kinds::ALL).await? {
                let is_found = match &entry.body {
                    Some(Body::Message(message)) => from_message(message).is_some_and(|item| is_in(&item)),
                    Some(Body::Event(_)) => writes_of(&entry)?.is_some_and(|all| {
                        let is_written = |bytes: &[u8]| is_in(bytes) || redactor.clean_bytes(bytes).is_some();
                        all.writes.iter().any(|write| write.form != Form::List && is_written(&write.bytes))
                    }),
                    // As far as it is written there, and not taken from what is before.
                    Some(Body::Mark(mark)) => record_of(mark)?.is_some_and(|record| {
                        let mut own = record.values.values().filter_map(|recipe| recipe.own.as_deref());
                        own.any(|bytes| redactor.clean_bytes(bytes).is_some())
                    }),
                    _ => false,
                };
                if is_found {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The thread's session and how many of its checkpoints held it; none when nothing did. Or why it cannot be replaced.
    async fn redact_thread(
        &self,
        key: &ThreadKey,
        session: SessionId,
        redactor: &Redactor,
        dry_run: bool,
    ) -> Result<std::result::Result<Option<(SessionId, u64)>, String>> {
        let mut slot = self.slot(key).await;
        *slot = None;
        if self.resolve(key).await? != Some(session) {
            // A branch of it, which is nobody's thread.
            return Ok(Ok(None));
        }
        let source = self.load(session).await?;
        let mut count = 0;
        let marks = self.all_marks(session).await?;
        let there = marks.iter().map(|marked| marked.record.id.clone()).collect();
        for (_, mut writes) in self.waiting(&source, &there).await? {
            if let Err(why) = clean_writes(&mut writes, redactor) {
                return Ok(Err(why));
            }
        }
        for marked in marks {
            let mut found = self.materialise(key, &source, &marked).await?;
            match clean(&mut found, redactor) {
                Ok(is_found) => count += u64::from(is_found),
                Err(why) => return Ok(Err(why)),
            }
        }
        // What no checkpoint has any more lies in the log all the same.
        if count == 0 && !self.is_in_log(session, redactor).await? {
            return Ok(Ok(None));
        }
        if dry_run {
            return Ok(Ok(Some((session, count))));
        }
        let (begun, blobs) = (self.store.source().now().plus_ms(1), self.store.blobs_of(session).await?);
        let change = Change { redactor: Some(redactor), ..Change::default() };
        match Box::pin(self.rebuild(key, &change)).await {
            Err(Error::Invalid { why, .. }) => return Ok(Err(why)),
            outcome => outcome?,
        }
        self.store.drop_blobs(blobs, begun).await?;
        Ok(Ok(self.resolve(key).await?.map(|session| (session, count))))
    }
}

/// Takes it out of a checkpoint; whether it was there. Or why that cannot be done.
pub(crate) fn clean(found: &mut Found, redactor: &Redactor) -> std::result::Result<bool, String> {
    let mut is_found = clean_value(&found.skeleton.0, &mut found.skeleton.1, redactor)?;
    is_found |= clean_value("json", &mut found.metadata, redactor)?;
    for (_, value) in &mut found.values {
        match value {
            FoundValue::Typed(word, bytes) => is_found |= clean_value(word, bytes, redactor)?,
            FoundValue::List(items) => {
                for item in items {
                    if let Some(clean) = msgpack::clean(item, redactor)? {
                        (*item, is_found) = (Arc::from(clean), true);
                    }
                }
            }
        }
    }
    Ok(is_found | clean_writes(&mut found.writes, redactor)?)
}

pub(crate) fn clean_writes(writes: &mut [FoundWrite], redactor: &Redactor) -> std::result::Result<bool, String> {
    let mut is_found = false;
    for write in writes {
        is_found |= clean_value(&write.word, &mut write.bytes, redactor)?;
    }
    Ok(is_found)
}

fn clean_value(word: &str, bytes: &mut Vec<u8>, redactor: &Redactor) -> std::result::Result<bool, String> {
    let clean = match word {
        "msgpack" => msgpack::clean(bytes, redactor)?,
        "json" | "bytes" | "bytearray" => redactor.clean_bytes(bytes),
        _ if redactor.clean_bytes(bytes).is_none() => None,
        _ => return Err(format!("a value that its serializer wrote as {word:?} holds it, which cannot be changed")),
    };
    let is_found = clean.is_some();
    if let Some(clean) = clean {
        *bytes = clean;
    }
    Ok(is_found)
}

#[cfg(test)]
mod tests {
    use milepost_model::{Body, Position, Seq, SessionId, SessionPatch};
    use milepost_store::backend::Kinds;
    use milepost_store::{Append, Claim, NewSession, Obstacle, Options, Redactor, Store};
    use serde_json::Value;

    use crate::msgpack;
    use crate::read::{FoundValue, Listing};
    use crate::thread::{Saver, ThreadKey};
    use crate::write::{NewCheckpoint, NewValue, NewWrite, NewWrites, Part};

    const SECRET: &str = "pässwörd-\"7\"\nline";
    const INSTEAD: &str = "[gone, and longer than the secret was, as it may be]";

    fn text(text: &str) -> Vec<u8> {
        let mut out = match text.len() {
            short @ 0..=31 => vec![0xa0 | short as u8],
            length => vec![0xd9, u8::try_from(length).unwrap()],
        };
        out.extend(text.as_bytes());
        out
    }

    /// `{text: [text, 7, {bytes, a value of the serializer's own}], …}`.
    fn value(said: &str) -> Vec<u8> {
        let mut out = vec![0x82];
        out.extend(text(said));
        out.push(0x93);
        out.extend(text(&format!("it is {said}, or {}", serde_json::json!({ "as": said }))));
        out.push(7);
        out.extend([0xc4, said.len() as u8]);
        out.extend(said.as_bytes());
        let inner = text(said);
        out.push(0xa1);
        out.push(b'x');
        out.extend([0xc7, inner.len() as u8, 5]);
        out.extend(inner);
        out
    }

    fn put(id: &str, parent: Option<&str>, bytes: Vec<u8>) -> NewCheckpoint {
        NewCheckpoint {
            id: id.to_owned(),
            parent: parent.map(str::to_owned),
            compared: None,
            skeleton: ("msgpack".into(), text(&format!("skeleton {id}"))),
            metadata: serde_json::json!({ "said": SECRET, "n": id }).to_string().into_bytes(),
            values: vec![("facts".into(), NewValue::Typed("msgpack".into(), bytes.into()))],
        }
    }

    async fn values(saver: &Saver) -> Vec<(String, FoundValue)> {
        let all = saver.list(&Listing::default()).await.unwrap();
        all.into_iter()
            .flat_map(|found| found.values.into_iter().map(move |(_, value)| (found.id.clone(), value)))
            .collect()
    }

    #[tokio::test]
    async fn a_secret_goes_from_values_however_they_are_stored() {
        let store = Store::open("memory:", Options::default()).await.unwrap();
        let saver = Saver::new(store.clone());
        let (key, redactor) = (ThreadKey::new("t", ""), Redactor::literal(SECRET, INSTEAD).unwrap());
        // The second is stored as a change of the first, which has half of the secret.
        let half = &SECRET[..9];
        saver.put(&key, &put("1", None, value(half))).await.unwrap();
        saver.put(&key, &put("2", Some("1"), value(SECRET))).await.unwrap();
        saver.put(&key, &put("3", Some("2"), value("nothing"))).await.unwrap();
        let write = NewWrite { index: 0, channel: "facts".into(), word: "msgpack".into(), bytes: value(SECRET) };
        let (checkpoint, task, path) = ("3".to_owned(), "task".to_owned(), String::new());
        saver
            .put_writes(&key, &NewWrites { checkpoint, task, path, replace: false, writes: vec![write] })
            .await
            .unwrap();

        let would = saver.redact(&redactor, true).await.unwrap();
        let done = saver.redact(&redactor, false).await.unwrap();
        assert_eq!(
            (would.sessions.len(), would.checkpoints),
            (1, 3),
            "{would:?}: all of them say it in their metadata"
        );
        assert_eq!((done.sessions.len(), done.checkpoints), (1, 3));
        let clean = |said: &str| FoundValue::Typed("msgpack".into(), value(said));
        assert_eq!(Some(value(INSTEAD)), msgpack::clean(&value(SECRET), &redactor).unwrap());
        assert_eq!(
            values(&saver).await,
            [("3".into(), clean("nothing")), ("2".into(), clean(INSTEAD)), ("1".into(), clean(half))]
        );
        let newest = saver.get(&key, None).await.unwrap().unwrap();
        assert_eq!(newest.writes[0].bytes, value(INSTEAD));
        assert_eq!(newest.metadata, serde_json::json!({ "said": INSTEAD, "n": "3" }).to_string().into_bytes());
        // Whoever comes next finds nothing, and the log is whole.
        assert_eq!(saver.redact(&redactor, true).await.unwrap(), Default::default());
        let rest = store.redact(&redactor, "it leaked", &Claim::new("a test"), false).await.unwrap();
        assert!(rest.sessions.is_empty() && rest.passed_over.is_empty(), "{rest:?}");
        assert!(store.verify().await.unwrap().problems.is_empty());
        saver.put(&key, &put("4", Some("3"), value("on"))).await.unwrap();
    }

    #[tokio::test]
    async fn what_only_an_adapter_can_change_is_passed_over_and_named() {
        let store = Store::open("memory:", Options::default()).await.unwrap();
        let saver = Saver::new(store.clone());
        let redactor = Redactor::literal("hunter2", INSTEAD).unwrap();
        let key = ThreadKey::new("t", "");
        let mut pickled = put("1", None, value("a"));
        pickled.values =
            vec![("facts".into(), NewValue::Typed("pickle".into(), b"\x80\x05 hunter2 .".as_slice().into()))];
        saver.put(&key, &pickled).await.unwrap();
        let done = saver.redact(&redactor, false).await.unwrap();
        assert_eq!(done.passed_over.len(), 1, "{done:?}");
        assert!(done.passed_over[0].why.contains("pickle"), "{done:?}");
        // The store does not touch it either: it would not be a value any more.
        let rest = store.redact(&redactor, "it leaked", &Claim::new("a test"), false).await.unwrap();
        assert_eq!(
            rest.passed_over.iter().map(|one| one.obstacle).collect::<Vec<_>>(),
            [Obstacle::Adapter],
            "{rest:?}"
        );
        let kept = saver.get(&key, None).await.unwrap().unwrap().values;
        assert_eq!(kept, [("facts".into(), FoundValue::Typed("pickle".into(), b"\x80\x05 hunter2 .".to_vec()))]);
    }

    #[tokio::test]
    async fn what_no_checkpoint_has_any_more_goes_too() {
        let store = Store::open("memory:", Options::default()).await.unwrap();
        let saver = Saver::new(store.clone());
        let (key, redactor) = (ThreadKey::new("t", ""), Redactor::literal(SECRET, INSTEAD).unwrap());
        let mut first = put("1", None, value("a"));
        first.metadata = b"{}".to_vec();
        saver.put(&key, &first).await.unwrap();
        // Mostly other letters, so that it is stored as base64; and replaced by the next.
        for said in [SECRET, "nothing"] {
            let bytes = text(&format!("{}{said}", "é".repeat(80)));
            let write = NewWrite { index: -3, channel: "__resume__".into(), word: "msgpack".into(), bytes };
            let (checkpoint, task, path) = ("1".to_owned(), "task".to_owned(), String::new());
            let writes = NewWrites { checkpoint, task, path, replace: true, writes: vec![write] };
            saver.put_writes(&key, &writes).await.unwrap();
        }
        // What people say of a thread is cleaned with it.
        let id = saver.session(&key).await.unwrap().unwrap();
        let patch = SessionPatch::new().title(format!("about {SECRET}")).tags(["kept"]);
        store.join(id).await.unwrap().append(Append::new().patch(patch)).await.unwrap();
        let done = saver.redact(&redactor, false).await.unwrap();
        assert_eq!(done.sessions.len(), 1, "{done:?}");
        assert_eq!(saver.redact(&redactor, true).await.unwrap(), Default::default());
        let session = store.session(done.sessions[0]).await.unwrap();
        assert_eq!((session.title.unwrap(), session.tags), (format!("about {INSTEAD}"), ["kept".to_owned()].into()));
        // A thread's name stays, and that is told.
        let named = ThreadKey::new(format!("of {SECRET}"), "");
        saver.put(&named, &first).await.unwrap();
        let mut all = store.redact(&redactor, "it leaked", &Claim::new("a test"), false).await.unwrap();
        all.join(saver.redact(&redactor, false).await.unwrap(), false);
        assert_eq!(all.passed_over.iter().map(|one| one.obstacle).collect::<Vec<_>>(), [Obstacle::Adapter], "{all:?}");
        assert_eq!(saver.get(&named, None).await.unwrap().unwrap().id, "1");
        // What lies in the trash is cleaned there.
        let held = ThreadKey::new("held", "");
        saver.put(&held, &put("1", None, value(SECRET))).await.unwrap();
        let id = saver.session(&held).await.unwrap().unwrap();
        store.trash(id, &Claim::new("a test").take_over()).await.unwrap();
        saver.redact(&redactor, false).await.unwrap();
        let found = saver.get(&held, None).await.unwrap().unwrap().values;
        assert_eq!(found, [("facts".into(), FoundValue::Typed("msgpack".into(), value(INSTEAD)))]);
        let id = saver.session(&held).await.unwrap().unwrap();
        assert!(store.session(id).await.unwrap().trashed.is_some());
    }

    /// Every text of a session's log, and the bytes that an adapter's texts stand for.
    async fn everything(store: &Store, session: SessionId) -> Vec<Vec<u8>> {
        fn texts(value: &Value, found: &mut Vec<Vec<u8>>) {
            match value {
                Value::String(text) => {
                    found.push(text.clone().into_bytes());
                    found.extend(crate::bytes::from_text(text));
                }
                Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
                Value::Object(map) => map.values().for_each(|item| texts(item, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        for line in store.backend().timelines(store.workspace(), session).await.unwrap() {
            let at = Position { timeline: line.id, seq: Seq(line.length - 1) };
            for entry in store.entries_at(at, Seq(0), Kinds::ALL).await.unwrap() {
                match entry.body.unwrap() {
                    Body::Message(message) => texts(&serde_json::to_value(message).unwrap(), &mut found),
                    Body::Event(event) => texts(&Value::Object(event.data), &mut found),
                    Body::Mark(mark) => texts(&Value::Object(mark.extra), &mut found),
                    Body::State(_) => {}
                }
            }
        }
        found
    }

    #[tokio::test]
    async fn what_a_person_branched_off_is_cleaned_too() {
        let store = Store::open("memory:", Options::default()).await.unwrap();
        let saver = Saver::new(store.clone());
        let (key, redactor) = (ThreadKey::new("t", ""), Redactor::literal(SECRET, INSTEAD).unwrap());
        // Mostly other letters, so that it is stored as base64: in a value, in what was written, in a message.
        let said = text(&format!("{}{SECRET}", "é".repeat(80)));
        let mut first = put("1", None, said.clone());
        first.metadata = b"{}".to_vec();
        let message =
            [&[0x83][..], &text("type"), &text("human"), &text("content"), &text("hi"), &text("kwargs"), &said];
        let items = vec![Part::New(message.concat())];
        first.values.push(("messages".into(), NewValue::List(items)));
        saver.put(&key, &first).await.unwrap();
        let write = NewWrite { index: 0, channel: "facts".into(), word: "msgpack".into(), bytes: said };
        let (checkpoint, task, path) = ("1".to_owned(), "task".to_owned(), String::new());
        let writes = NewWrites { checkpoint, task, path, replace: false, writes: vec![write] };
        saver.put_writes(&key, &writes).await.unwrap();
        let id = saver.session(&key).await.unwrap().unwrap();
        let line = store.backend().timelines(store.workspace(), id).await.unwrap().remove(0);
        let at = Position { timeline: line.id, seq: Seq(line.length - 1) };
        let branch = store.branch(at, NewSession::default(), &Claim::new("a person")).await.unwrap();
        let branched = branch.id();
        branch.release().await.unwrap();

        let holds = |all: &[Vec<u8>]| all.iter().filter(|bytes| memmem(bytes, SECRET.as_bytes())).count();
        assert_eq!(holds(&everything(&store, branched).await), 3, "each of them, and only as an adapter's text");
        saver.redact(&redactor, false).await.unwrap();
        let done = store.redact(&redactor, "it leaked", &Claim::new("a test"), false).await.unwrap();
        assert!(done.passed_over.is_empty() && (done.entries, done.checkpoints) == (2, 1), "{done:?}");
        assert_eq!(holds(&everything(&store, branched).await), 0);
        assert!(store.verify().await.unwrap().problems.is_empty());
    }

    fn memmem(bytes: &[u8], part: &[u8]) -> bool {
        bytes.windows(part.len()).any(|window| window == part)
    }

    #[tokio::test]
    async fn large_payloads_go_at_once() {
        let store = Store::open("memory:", Options::default()).await.unwrap();
        let saver = Saver::new(store.clone());
        let (key, redactor) = (ThreadKey::new("t", ""), Redactor::literal(SECRET, INSTEAD).unwrap());
        let mut state = 1u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8 & 0x7f
        });
        let noise: Vec<u8> = noise.take(60_000).collect();
        let mut bytes = vec![0x92, 0xc5];
        bytes.extend((noise.len() as u16).to_be_bytes());
        bytes.extend(&noise);
        bytes.extend(text(SECRET));
        saver.put(&key, &put("1", None, bytes)).await.unwrap();
        let id = saver.session(&key).await.unwrap().unwrap();
        assert_eq!(store.blobs_of(id).await.unwrap().len(), 1, "it is too large to lie in its entry");
        let done = saver.redact(&redactor, false).await.unwrap();
        assert_eq!(done.checkpoints, 1);
        let rest = store.redact(&redactor, "it leaked", &Claim::new("a test"), false).await.unwrap();
        assert!(rest.blobs.is_empty() && rest.passed_over.is_empty(), "{rest:?}");
        let all = store.backend().list_blobs(store.workspace(), None, 10).await.unwrap();
        assert_eq!(all.len(), 1, "only the new one");
    }

    #[test]
    fn any_bytes_are_cleaned_left_or_refused() {
        let redactor = Redactor::literal("ab", "-").unwrap();
        // Deeper than anything is looked into: its lengths could not be set right.
        let deep = [vec![0x91; 100_000], text("ab")].concat();
        let nested = (0..5000).fold(text("ab"), |inner, _| {
            let mut out = vec![0xc9];
            out.extend((inner.len() as u32).to_be_bytes());
            out.push(5);
            out.extend(inner);
            out
        });
        for bytes in [&deep, &nested, &[0xda, 0xff, b'a', b'b'].to_vec()] {
            assert!(msgpack::clean(bytes, &redactor).is_err());
        }
        for bytes in [&[0xda, 0xff][..], &[], &[vec![0x91; 100_000], text("xy")].concat()] {
            assert_eq!(msgpack::clean(bytes, &redactor), Ok(None));
        }
        let mut number = vec![0xcd];
        number.extend(4711u16.to_be_bytes());
        let clean = msgpack::clean(&number, &Redactor::literal("471", "x").unwrap());
        assert_eq!(clean, Ok(Some(vec![0xa2, b'x', b'1'])));
        // Names that become the same keep their values.
        let map = |names: [&str; 3]| {
            let mut out = vec![0x83];
            names.into_iter().zip(1..).for_each(|(name, number)| {
                out.extend(text(name));
                out.push(number);
            });
            out
        };
        let clean = msgpack::clean(&map(["ab", "ab ab", "- -"]), &redactor);
        assert_eq!(clean, Ok(Some(map(["-", "- -", "- - 2"]))));
    }
}
