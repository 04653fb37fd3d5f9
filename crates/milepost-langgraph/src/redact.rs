//! Late redaction: a secret is taken out of threads' values where they are whole.
//!
//! A log has of a value what changed, and MessagePack tells how long each text is: nothing can be replaced in there in place. So
//! every checkpoint is made whole, what its values hold is replaced, and a thread that held it is written anew, with the same
//! checkpoints, as pruning does; the old log goes.

use std::collections::BTreeSet;
use std::sync::Arc;

use milepost_model::SessionId;
use milepost_store::{Error, PassedOver, Redacted, Redactor, Result};

use crate::house::Change;
use crate::msgpack;
use crate::read::{Found, FoundValue};
use crate::thread::{Saver, ThreadKey};

impl Saver {
    /// Replaces what `redactor` finds in every thread of the store. With `dry_run` it only counts. To be done before
    /// [`Store::redact`](milepost_store::Store::redact), which passes over the sessions of threads.
    pub async fn redact(&self, redactor: &Redactor, dry_run: bool) -> Result<Redacted> {
        let mut redacted = Redacted::default();
        let all = self.sessions(None, None).await?;
        if !dry_run {
            // What a process that was killed left behind may hold it.
            for thread in all.iter().map(|(key, _)| &key.thread).collect::<BTreeSet<_>>() {
                self.sweep(thread).await?;
            }
        }
        for (key, session) in all {
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
        Ok(redacted)
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
        for marked in self.all_marks(session).await? {
            let mut found = self.materialise(key, &source, &marked).await?;
            match clean(&mut found, redactor) {
                Ok(is_found) => count += u64::from(is_found),
                Err(why) => return Ok(Err(why)),
            }
        }
        // What no checkpoint has any more lies in the log all the same.
        if count == 0 && !self.store.holds(session, redactor).await? {
            return Ok(Ok(None));
        }
        if dry_run {
            return Ok(Ok(Some((session, count))));
        }
        let change = Change { redactor: Some(redactor), ..Change::default() };
        Box::pin(self.rebuild(key, session, &change)).await?;
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
                    if let Some(clean) = msgpack::clean(item, redactor) {
                        (*item, is_found) = (Arc::from(clean), true);
                    }
                }
            }
        }
    }
    for write in &mut found.writes {
        is_found |= clean_value(&write.word, &mut write.bytes, redactor)?;
    }
    Ok(is_found)
}

fn clean_value(word: &str, bytes: &mut Vec<u8>, redactor: &Redactor) -> std::result::Result<bool, String> {
    let clean = match word {
        "msgpack" => msgpack::clean(bytes, redactor),
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
    use milepost_store::{Claim, Obstacle, Options, Redactor, Store};

    use crate::msgpack;
    use crate::read::{FoundValue, Listing};
    use crate::thread::{Saver, ThreadKey};
    use crate::write::{NewCheckpoint, NewValue, NewWrite, NewWrites};

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
            values: vec![("facts".into(), NewValue::Typed("msgpack".into(), bytes))],
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
        assert_eq!(value(INSTEAD), msgpack::clean(&value(SECRET), &redactor).unwrap());
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
        pickled.values = vec![("facts".into(), NewValue::Typed("pickle".into(), b"\x80\x05 hunter2 .".to_vec()))];
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

    #[test]
    fn any_bytes_are_cleaned_or_left() {
        let redactor = Redactor::literal("ab", "-").unwrap();
        // Deeper than anything is looked into, and cut short.
        let deep = [vec![0x91; 100_000], text("ab")].concat();
        assert_eq!(msgpack::clean(&deep, &redactor).unwrap().len(), deep.len() - 1);
        let nested = (0..5000).fold(text("ab"), |inner, _| {
            let mut out = vec![0xc9];
            out.extend((inner.len() as u32).to_be_bytes());
            out.push(5);
            out.extend(inner);
            out
        });
        assert!(msgpack::clean(&nested, &redactor).is_some());
        assert_eq!(msgpack::clean(&[0xda, 0xff], &redactor), None);
        assert_eq!(msgpack::clean(&[], &redactor), None);
        let mut number = vec![0xcd];
        number.extend(4711u16.to_be_bytes());
        assert_eq!(msgpack::clean(&number, &Redactor::literal("471", "x").unwrap()).unwrap(), [0xa2, b'x', b'1']);
    }
}
