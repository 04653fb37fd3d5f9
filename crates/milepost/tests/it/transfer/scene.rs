//! Stores in scratch places, and sessions of every shape made from a seed.

use std::sync::Arc;

use milepost::model::Entropy as _;
use milepost::model::{
    Block, Channel, Event, ManualClock, Message, Resumable, Role, SeededEntropy, SessionId, SessionPatch, Source,
    State, Status, Timestamp, Trigger,
};
use milepost::store::{Append, Claim, MarkQuery, MasterKey, NewMark, NewSession, Options, SessionWriter, Store};
use serde_json::{Value, json};

/// A moment to begin with: 2026-01-01.
pub const START: Timestamp = Timestamp(1_767_225_600_000);

pub struct Scene {
    pub dir: tempfile::TempDir,
    pub clock: Arc<ManualClock>,
    pub options: Options,
}

impl Scene {
    pub fn new(seed: u64) -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let mut options = Options::default();
        options.source = Some(Source::seeded(seed, Arc::clone(&clock)));
        Self { dir: tempfile::tempdir().unwrap(), clock, options }
    }

    pub async fn memory(&self) -> Store {
        Store::open("memory:", self.options.clone()).await.unwrap()
    }

    pub async fn sqlite(&self, name: &str) -> Store {
        let path = self.dir.path().join(name);
        Store::open(&format!("sqlite:{}", path.display()), self.options.clone()).await.unwrap()
    }

    pub async fn encrypted(&self) -> Store {
        let mut options = self.options.clone();
        options.keys.master = Some(MasterKey::from_bytes([7; 32]));
        Store::open("memory:", options).await.unwrap()
    }
}

pub fn claim() -> Claim {
    Claim::new("a test")
}

/// Draws numbers and things made of them.
pub struct Dice(SeededEntropy);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(SeededEntropy::from_u64(seed))
    }

    pub fn below(&self, end: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes) % end.max(1)
    }

    pub fn text(&self) -> String {
        const PARTS: [&str; 14] = [
            "hello",
            " ",
            "\n",
            "```\n",
            "<b>&",
            "日本語",
            "👩‍🚀",
            "\u{202e}",
            "\\\"",
            "| # *",
            "\u{0}",
            "ß",
            "{\"a\":1}",
            "---\n",
        ];
        (0..self.below(8)).map(|_| PARTS[self.below(PARTS.len() as u64) as usize]).collect()
    }

    pub fn value(&self, depth: u64) -> Value {
        match self.below(if depth == 0 { 6 } else { 8 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(u64::MAX)),
            3 => json!(self.below(1000) as f64 / 7.0),
            4 => json!(-(self.below(1 << 40) as i64)),
            5 => json!(self.text()),
            6 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => (0..self.below(4))
                .map(|n| (format!("k{n}{}", self.text()), self.value(depth - 1)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }

    pub fn message(&self) -> Message {
        let role = [Role::User, Role::Assistant, Role::System, Role::Tool, Role::Other("judge".into())];
        let role = role[self.below(5) as usize].clone();
        let mut message = match self.below(3) {
            0 => Message::new(role, self.text()),
            _ => Message::blocks(role, (0..self.below(4)).map(|_| self.block()).collect()),
        };
        if self.below(3) == 0 {
            message = message.in_channel(Channel::new(format!("node-{}", self.below(3))).unwrap());
        }
        if self.below(3) == 0 {
            message.extra.insert("metadata".into(), self.value(2));
            message.extra.insert("ünknown".into(), self.value(1));
        }
        message
    }

    fn block(&self) -> Block {
        let extra = || match self.below(3) {
            0 => serde_json::Map::from_iter([("cache".to_owned(), self.value(1))]),
            _ => serde_json::Map::new(),
        };
        match self.below(6) {
            0 => Block::Text { text: self.text(), extra: extra() },
            1 => Block::ToolCall {
                id: format!("c{}", self.below(9)),
                name: self.text(),
                input: self.value(3),
                extra: extra(),
            },
            2 => Block::ToolResult {
                call_id: format!("c{}", self.below(9)),
                content: self.value(2),
                is_error: self.below(2) == 0,
                extra: extra(),
            },
            3 => Block::Image { source: json!({"type": "url", "url": self.text()}), extra: extra() },
            4 => Block::Thinking { text: self.text(), extra: extra() },
            _ => Block::Unknown(json!({"type": "future", "what": self.value(2)})),
        }
    }

    pub fn state(&self) -> State {
        let mut map = serde_json::Map::new();
        for section in ["memory", "execution", "context", "odd one"] {
            if self.below(4) > 0 {
                map.insert(section.into(), json!({ "v": self.value(3), "n": self.below(5) }));
            }
        }
        State::try_from(Value::Object(map)).unwrap()
    }

    fn mark(&self) -> NewMark {
        let own = Trigger::Other("deploy".into());
        let trigger = Trigger::KNOWN.get(self.below(24) as usize).cloned().unwrap_or(own);
        let mut mark = NewMark::new(trigger);
        if self.below(3) == 0 {
            mark = mark.label(format!("label {}", self.text()).replace('\0', ""));
        }
        if self.below(2) == 0 {
            mark = mark.description(self.text());
        }
        if self.below(4) == 0 {
            mark.clean = false;
            mark.resumable = Resumable::No("an open call".into());
        }
        if self.below(3) == 0 {
            mark.extra.insert("node".into(), self.value(2));
        }
        mark
    }
}

/// A session of any shape: messages, states, marks, events with blobs, restores, pruning.
pub async fn any_session(scene: &Scene, store: &Store, dice: &Dice) -> SessionId {
    let patch = SessionPatch::new()
        .title("A *title*")
        .project("p1")
        .agent("dev")
        .tags(["x", "y"])
        .with("custom", json!({"a": [1]}));
    let writer = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    grow(scene, &writer, dice, 4 + dice.below(14)).await;
    let id = writer.id();
    writer.release().await.unwrap();
    id
}

pub async fn grow(scene: &Scene, writer: &SessionWriter, dice: &Dice, steps: u64) {
    for _ in 0..steps {
        scene.clock.advance_ms(dice.below(5000) as i64);
        match dice.below(10) {
            0 | 1 => drop(writer.append(Append::new().message(dice.message())).await.unwrap()),
            2 => drop(writer.append(Append::new().state(dice.state())).await.unwrap()),
            3 => {
                let blob = writer.put_blob(dice.text().as_bytes()).await.unwrap();
                let name = milepost::model::Hash(blob.0).to_string();
                let data = json!({ "blob": name, "list": [name, "other"], "n": dice.value(2) });
                writer.append(Append::new().event_with(Event::new("files", data), vec![blob])).await.unwrap();
            }
            4 => {
                let marks = writer.store().marks(writer.id(), &MarkQuery::default()).await.unwrap();
                if let Some(mark) = marks.get(dice.below(marks.len() as u64) as usize) {
                    writer.restore(mark.at).await.unwrap();
                }
            }
            5 => {
                let patch = SessionPatch::new().status(Status::Paused).with("n", json!({ "v": dice.value(1) }));
                writer.append(Append::new().patch(patch)).await.unwrap();
            }
            6 => {
                let marks = writer.store().marks(writer.id(), &MarkQuery::default()).await.unwrap();
                let own = marks.iter().find(|mark| mark.session == writer.id());
                if let Some(mark) = own.filter(|_| marks.len() > 2) {
                    writer.trash_mark(mark.checkpoint.id).await.unwrap();
                    if dice.below(2) == 0 {
                        writer.purge(Timestamp(i64::MAX)).await.unwrap();
                    }
                }
            }
            _ => {
                let append =
                    Append::new().message(dice.message()).state(dice.state()).message(dice.message()).mark(dice.mark());
                writer.append(append).await.unwrap();
            }
        }
    }
}
