//! What tests of runs need: an engine in a scratch place, a clock that moves instead of waiting, and an action that counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use milepost::model::{Channel, ManualClock, Message, Role, Source, Timestamp};
use milepost::{EngineOptions, MessageQuery, Milepost, NewSession, Resume, SessionId};
use milepost_models::{Cancel, Heard, Model, Outcome, Request, Scripted, Timer};
use milepost_run::graph::actions::Repeat;
use milepost_run::graph::{Graph, check};
use milepost_run::run::{Action, Changes, End, Error, Failed, Ledger, Runner, Settle, Status, Step};
use serde_json::{Value, json};

pub struct Scene {
    pub dir: tempfile::TempDir,
    pub clock: Arc<ManualClock>,
    pub options: EngineOptions,
    pub effects: Arc<Effects>,
}

/// The outside world: what had an effect, by key.
#[derive(Default)]
pub struct Effects {
    all: Mutex<Vec<(String, String)>>,
    /// So many of the next attempts fail before they have an effect.
    pub fail: AtomicU32,
}

impl Effects {
    /// The nodes that had an effect, in order.
    pub fn nodes(&self) -> Vec<String> {
        self.all.lock().unwrap().iter().map(|(node, _)| node.clone()).collect()
    }

    /// How often each node had an effect, and under how many keys.
    pub fn counts(&self) -> BTreeMap<String, (usize, usize)> {
        let all = self.all.lock().unwrap();
        let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
        all.iter().for_each(|(node, key)| keys.entry(node.clone()).or_default().push(key.clone()));
        let distinct = |mut keys: Vec<String>| {
            keys.sort();
            keys.dedup();
            keys.len()
        };
        keys.into_iter().map(|(node, keys)| (node, (keys.len(), distinct(keys)))).collect()
    }
}

/// An action with an effect that is counted.
pub struct Counted {
    effects: Arc<Effects>,
    repeat: Repeat,
}

#[async_trait]
impl Action for Counted {
    fn repeat(&self, _: &Value) -> Repeat {
        self.repeat
    }

    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let left = self.effects.fail.load(Ordering::SeqCst);
        if left > 0 {
            self.effects.fail.store(left - 1, Ordering::SeqCst);
            return Err(Failed::Transient("no network".to_owned()));
        }
        self.effects.all.lock().unwrap().push((step.node.clone(), step.key.clone()));
        Ok(json!({"node": step.node, "round": step.iteration, "with": step.parameters}))
    }
}

/// A scripted model that remembers what it was given.
#[derive(Debug)]
pub struct Overheard {
    script: Scripted,
    given: Mutex<Vec<Request>>,
    /// Its replies come one after the other, whatever of the conversation it is given.
    in_order: bool,
}

impl Overheard {
    pub fn new(script: &str) -> Arc<Self> {
        let script = Scripted::parse("script.yaml".as_ref(), script, Timer::none()).unwrap();
        Arc::new(Self { script, given: Mutex::default(), in_order: false })
    }

    pub fn in_order(script: &str) -> Arc<Self> {
        let script = Scripted::parse("script.yaml".as_ref(), script, Timer::none()).unwrap();
        Arc::new(Self { script, given: Mutex::default(), in_order: true })
    }

    pub fn given(&self) -> Vec<Request> {
        self.given.lock().unwrap().clone()
    }
}

#[async_trait]
impl Model for Overheard {
    fn name(&self) -> &str {
        "gpt-4o"
    }

    async fn ask(
        &self,
        request: &Request,
        cancel: &Cancel,
        heard: Heard<'_>,
    ) -> Result<Outcome, milepost_models::Error> {
        let number = {
            let mut given = self.given.lock().unwrap();
            given.push(request.clone());
            given.len() - 1
        };
        if self.in_order {
            let answered = std::iter::repeat_n(Message::new(Role::Assistant, "so far"), number);
            let told = Request::new(std::iter::once(Message::new(Role::User, "go")).chain(answered).collect());
            return self.script.ask(&told, cancel, heard).await;
        }
        self.script.ask(request, cancel, heard).await
    }
}

/// A model whose answers tell something beside what they say.
#[derive(Debug)]
pub struct Telling {
    ready_at: Option<Timestamp>,
    /// What arrives before the line goes dead.
    cut: Option<String>,
    asked: AtomicU32,
}

impl Telling {
    pub fn ready_at(at: Timestamp) -> Arc<Self> {
        Arc::new(Self { ready_at: Some(at), cut: None, asked: AtomicU32::new(0) })
    }

    pub fn cut(said: &str) -> Arc<Self> {
        Arc::new(Self { ready_at: None, cut: Some(said.to_owned()), asked: AtomicU32::new(0) })
    }

    pub fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Model for Telling {
    fn name(&self) -> &str {
        "telling"
    }

    async fn ask(&self, _: &Request, _: &Cancel, _: Heard<'_>) -> Result<Outcome, milepost_models::Error> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut message = Message::new(Role::Assistant, self.cut.as_deref().unwrap_or("Noted."));
        message.extra.insert("usage".to_owned(), json!({"input_tokens": 90, "output_tokens": 10}));
        let (usage, cost) =
            (milepost_models::Usage { input_tokens: 90, output_tokens: 10, ..Default::default() }, None);
        let answer = milepost_models::Answer { message, stop: None, usage, cost, ready_at: self.ready_at };
        Ok(match self.cut {
            None => Outcome::Whole(answer),
            Some(_) => {
                let why = "the line went dead".to_owned();
                Outcome::Cut { answer, why: milepost_models::Error::Interrupted { model: "telling".to_owned(), why } }
            }
        })
    }
}

impl Scene {
    pub fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp(1_767_225_600_000)));
        let mut options = EngineOptions::default();
        options.store.source = Some(Source::seeded(1, Arc::clone(&clock)));
        options.holder = "a test".into();
        Self { dir: tempfile::tempdir().unwrap(), clock, options, effects: Arc::default() }
    }

    pub async fn engine(&self) -> Milepost {
        let url = format!("sqlite:{}/milepost.db", self.dir.path().display());
        Milepost::open_with(&url, self.options.clone()).await.unwrap()
    }

    pub fn runner(&self, engine: &Milepost) -> Runner {
        let counted = |repeat| Arc::new(Counted { effects: self.effects.clone(), repeat });
        Runner::new(engine)
            .action("effect", counted(Repeat::Effect))
            .action("keyed", counted(Repeat::Idempotent))
            .timer(Timer::moving(self.clock.clone()))
    }

    /// A runner whose model answers from a script.
    pub fn scripted(&self, engine: &Milepost, script: &str) -> Runner {
        let source = engine.source().clone();
        let model = Scripted::parse("script.yaml".as_ref(), script, Timer::none()).unwrap().with_source(source);
        self.runner(engine).model(Arc::new(model))
    }

    /// What was said in a channel.
    pub async fn said(&self, id: SessionId, channel: &str) -> Vec<Message> {
        let query = MessageQuery { channel: Some(Channel::new(channel).unwrap()), ..MessageQuery::default() };
        let stored = self.engine().await.store().messages(id, &query).await.unwrap();
        stored.into_iter().map(|stored| stored.message).collect()
    }

    /// The steps of the ledger, parts of steps included, with where they are.
    pub async fn steps(&self, id: SessionId) -> Vec<(String, Status)> {
        let state = self.engine().await.store().state(id).await.unwrap();
        let ledger = Ledger::read(&state).unwrap();
        ledger.nodes().map(|(name, entry)| (name.to_owned(), entry.status)).collect()
    }

    pub async fn start(&self, text: &str) -> (SessionId, End) {
        let engine = self.engine().await;
        self.runner(&engine).start(&graph(text), NewSession::default()).await.unwrap()
    }

    pub async fn resume(&self, id: SessionId) -> End {
        self.resume_with(id, &BTreeMap::new(), None).await.unwrap().0
    }

    pub async fn resume_with(
        &self,
        id: SessionId,
        settle: &BTreeMap<String, Settle>,
        graph: Option<&Graph>,
    ) -> Result<(End, Changes), Error> {
        let engine = self.engine().await;
        let how = Resume { take_over: true, ..Resume::latest() };
        self.runner(&engine).resume(id, how, graph, settle).await
    }

    pub async fn section(&self, id: SessionId, name: &str) -> Value {
        self.engine().await.store().state(id).await.unwrap().section(name).cloned().unwrap_or_default()
    }

    pub async fn status(&self, id: SessionId) -> String {
        self.engine().await.store().session(id).await.unwrap().status.as_str().to_owned()
    }
}

pub fn graph(text: &str) -> Graph {
    let checked = check("g.yaml".as_ref(), text, &["effect", "keyed"]);
    checked.graph.unwrap_or_else(|| panic!("{:?}", checked.found))
}

pub fn completed(end: &End) -> &serde_json::Map<String, Value> {
    match end {
        End::Completed { outputs } => outputs,
        other => panic!("{other:?}"),
    }
}
