//! Agents at work: a few sessions at once, each with steps, single messages, large payloads, restores, branches and
//! housekeeping. Everything the store acknowledges is told, and only then.

use std::collections::VecDeque;
use std::sync::Arc;

use milepost_model::{Message, Position, Retention, Role, Seq, SessionPatch, State, Trigger};
use milepost_store::{
    Append, Claim, DeleteMode, Error, NewMark, NewSession, Options, Receipt, SessionQuery, SessionWriter, Store,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::told::{Ack, check_session, hash_messages, hash_state};
use super::{Job, open, say};
use crate::harness::Rng;

/// How much of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// Sessions worked on at once.
    pub sessions: usize,
    /// Steps of each; without end when none.
    pub steps: Option<u64>,
    /// Characters of a large message.
    pub large: usize,
    /// Begin new sessions, and leave those that are there alone.
    pub fresh: bool,
    /// Go on after an error, instead of failing.
    pub stubborn: bool,
    /// End without closing the store, as a crash would.
    pub abrupt: bool,
}

impl Plan {
    pub const ENDLESS: Plan =
        Plan { sessions: 3, steps: None, large: 40_000, fresh: false, stubborn: false, abrupt: false };

    pub const fn steps(sessions: usize, steps: u64) -> Plan {
        Plan { sessions, steps: Some(steps), large: 40_000, fresh: false, stubborn: false, abrupt: false }
    }
}

pub async fn run(job: &Job, plan: &Plan) {
    let store = open(&job.store, Options::default()).await.unwrap_or_else(|e| {
        say(&format!("problem opening: {e}"));
        panic!("{e}")
    });
    let known = store.sessions(&SessionQuery::default()).await.unwrap().sessions;
    for session in &known {
        if let Err(problem) = check_session(&store, session.id).await {
            // Another process may have deleted it since it was listed; what that one told is checked by the test.
            if plan.fresh && matches!(store.session(session.id).await, Err(Error::NotFound { .. })) {
                continue;
            }
            say(&format!("problem {problem}"));
        }
    }
    say("ready");
    let mut tasks = Vec::new();
    for number in 0..plan.sessions {
        let mut rng = Rng::new(job.seed.wrapping_mul(1000) + number as u64);
        let old =
            known.get(number).filter(|_| !plan.fresh && (known.len() > 8 || rng.chance(6))).map(|session| session.id);
        let (store, plan) = (store.clone(), plan.clone());
        let life = async move {
            let claim = Claim::new("a child").take_over();
            let writer = match old {
                Some(id) => store.write(id, &claim).await,
                None => store.create(NewSession::default(), &claim).await,
            };
            let writer = writer.unwrap_or_else(|e| {
                say(&format!("problem taking a session: {e}"));
                panic!("{e}")
            });
            let state = writer.state().await.unwrap().into_value();
            let agent = Agent { store, writer: Arc::new(writer), rng, state, marks: VecDeque::new() };
            agent.work(&plan).await;
        };
        // Every second one waits on a thread of its own, which then does the writer's work.
        tasks.push(match number % 2 {
            0 => tokio::spawn(life),
            _ => tokio::task::spawn_blocking(|| milepost_store::block_on(life)),
        });
    }
    for task in tasks {
        task.await.unwrap();
    }
    if plan.abrupt {
        std::process::exit(0);
    }
    store.close().await.unwrap();
}

struct Agent {
    store: Store,
    writer: Arc<SessionWriter>,
    rng: Rng,
    state: Value,
    /// Checkpoints of this life with their states.
    marks: VecDeque<(Position, Value)>,
}

type Outcome = Result<(), Error>;

impl Agent {
    async fn work(mut self, plan: &Plan) {
        let mut step = 0;
        while plan.steps.is_none_or(|steps| step < steps) {
            step += 1;
            let outcome = match self.rng.below(24) {
                0..=11 => self.step().await,
                12..=14 => self.talk(1).await,
                15 => self.talk(6).await,
                16 | 17 => self.large(plan.large).await,
                18 => self.restore().await,
                19 => self.branch().await,
                20 => self.prune().await,
                21 => self.record().await,
                22 => self.rename().await,
                _ => self.short_life().await,
            };
            if let Err(error) = outcome {
                say(&format!("fail {error}"));
                assert!(plan.stubborn, "{error}");
                tokio::time::sleep(std::time::Duration::from_millis(3)).await;
                // Whether it was stored is open: what is there is asked for.
                if let Ok(state) = self.writer.state().await {
                    self.state = state.into_value();
                } else {
                    self.state = Value::Null;
                }
            }
        }
    }

    /// Few words, mostly the same ones: an index of random words would take longer than all the rest.
    fn text(&mut self, bytes: usize) -> String {
        const WORDS: [&str; 8] = ["the", "build", "linker", "took", "cache", "seconds", "profile", "slow"];
        let mut text = format!("{:x}", self.rng.next());
        while text.len() < bytes {
            text += " ";
            text += WORDS[self.rng.below(WORDS.len())];
        }
        text
    }

    /// Does not compress below the size at which a payload becomes a blob.
    fn noise(&mut self, bytes: usize) -> String {
        (0..bytes / 16).map(|_| format!("{:016x}", self.rng.next())).collect()
    }

    fn message(&mut self, bytes: usize) -> Message {
        let role = if self.rng.chance(4) { Role::User } else { Role::Assistant };
        Message::new(role, self.text(bytes))
    }

    async fn change(&mut self) -> Result<State, Error> {
        if self.state.is_null() {
            self.state = self.writer.state().await?.into_value();
        }
        let step = self.state.pointer("/memory/step").and_then(Value::as_u64).unwrap_or(0) + 1;
        let (key, value) = (format!("k{}", self.rng.below(12)), self.text(60));
        let mut next = self.state.clone();
        next["memory"]["step"] = json!(step);
        next["tools"][key] = json!(value);
        if self.rng.below(20) == 0 {
            next["memory"]["notes"] = json!(self.noise(36_000));
        }
        Ok(next.try_into()?)
    }

    fn tell(&self, writer: &SessionWriter, receipt: &Receipt, messages: &[Message], state: Option<&Value>) {
        say(&Ack {
            session: writer.id(),
            timeline: receipt.first.timeline,
            first: receipt.first.seq.0,
            length: receipt.length,
            messages: hash_messages(messages),
            state: state.map(hash_state),
            mark: receipt.checkpoints.last().copied(),
        }
        .line());
    }

    /// What an agent's step appends: messages, state and a mark, all or nothing.
    async fn step(&mut self) -> Outcome {
        let messages = vec![self.message(300), self.message(500)];
        let state = self.change().await?;
        let mut append = Append::new();
        for message in &messages {
            append = append.message(message.clone());
        }
        append = append.state(state.clone()).mark(NewMark::new(Trigger::Step).description("a step"));
        let receipt = self.writer.append(append).await?;
        self.state = state.into_value();
        self.tell(&self.writer, &receipt, &messages, Some(&self.state));
        let at = Position { timeline: receipt.first.timeline, seq: Seq(receipt.length - 1) };
        self.marks.push_back((at, self.state.clone()));
        if self.marks.len() > 8 {
            self.marks.pop_front();
        }
        Ok(())
    }

    /// Single messages, several at once.
    async fn talk(&mut self, at_once: usize) -> Outcome {
        let messages: Vec<Message> = (0..at_once).map(|_| self.message(200)).collect();
        let mut tasks = Vec::new();
        for message in messages {
            let writer = Arc::clone(&self.writer);
            tasks.push(tokio::spawn(async move {
                let receipt = writer.append(Append::new().message(message.clone())).await;
                receipt.map(|receipt| (receipt, message))
            }));
        }
        let mut outcome = Ok(());
        for task in tasks {
            match task.await.unwrap() {
                Ok((receipt, message)) => self.tell(&self.writer, &receipt, &[message], None),
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// A message that becomes a blob.
    async fn large(&mut self, characters: usize) -> Outcome {
        let message = Message::new(Role::Tool, self.noise(characters));
        let receipt = self.writer.append(Append::new().message(message.clone())).await?;
        self.tell(&self.writer, &receipt, &[message], None);
        Ok(())
    }

    async fn restore(&mut self) -> Outcome {
        let at = self.rng.below(self.marks.len());
        let Some((position, state)) = self.marks.get(at).cloned() else { return Ok(()) };
        let receipt = self.writer.restore(position).await?;
        self.state = state;
        self.tell(&self.writer, &receipt, &[], Some(&self.state));
        Ok(())
    }

    async fn branch(&mut self) -> Outcome {
        let at = self.rng.below(self.marks.len());
        let Some((position, state)) = self.marks.get(at).cloned() else { return Ok(()) };
        let new = NewSession { id: None, patch: SessionPatch::new().title("a branch") };
        let branch = self.store.branch(position, new, &Claim::new("a child")).await?;
        let message = self.message(100);
        let receipt = branch.append(Append::new().message(message.clone())).await?;
        self.tell(&branch, &receipt, &[message], Some(&state));
        branch.release().await
    }

    async fn prune(&mut self) -> Outcome {
        let keep = Retention { max_checkpoints: 20, ..Retention::default() };
        self.writer.prune(&keep).await?;
        if self.rng.chance(3) {
            say(&format!("purging {}", self.writer.id()));
            self.writer.purge(self.store.source().now().plus_ms(1)).await?;
        }
        Ok(())
    }

    async fn record(&mut self) -> Outcome {
        let key = format!("count-{}", self.writer.id());
        let old = self.store.record("test", &key).await?;
        let count = old.as_ref().and_then(|r| std::str::from_utf8(&r.value).ok()?.parse().ok()).unwrap_or(0u64) + 1;
        self.store.put_record("test", &key, old.map(|r| r.version), None, count.to_string().as_bytes()).await?;
        say(&format!("record {key} {count}"));
        Ok(())
    }

    async fn rename(&mut self) -> Outcome {
        let patch = SessionPatch::new().title(self.text(20)).tags(["one", "two"]);
        let receipt = self.writer.append(Append::new().patch(patch)).await?;
        self.tell(&self.writer, &receipt, &[], Some(&self.state).filter(|state| !state.is_null()));
        Ok(())
    }

    /// A session that is made and deleted again.
    async fn short_life(&mut self) -> Outcome {
        let claim = Claim::new("a child").take_over();
        let writer = self.store.create(NewSession::default(), &claim).await?;
        let message = self.message(20_000);
        let receipt = writer.append(Append::new().message(message.clone())).await?;
        self.tell(&writer, &receipt, &[message], None);
        if self.rng.chance(4) {
            return writer.release().await;
        }
        say(&format!("deleting {}", writer.id()));
        self.store.delete(writer.id(), DeleteMode::Refuse, &claim, false).await?;
        say(&format!("deleted {}", writer.id()));
        Ok(())
    }
}
