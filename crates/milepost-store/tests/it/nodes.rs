//! Several processes on one store that is named by a URL: they take one session from each other, append and read. Whatever
//! happens between them and the server, nothing that was acknowledged is lost, nothing is doubled, and what they saw could have
//! happened in one order that real time allows (checked by `stateright`'s `LinearizabilityTester`).

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use milepost_model::SessionId;
use milepost_store::{Append, Claim, Error, MessageQuery, NewSession, Options, SessionWriter, Store};
use serde::{Deserialize, Serialize};
use stateright::semantics::{ConsistencyTester as _, LinearizabilityTester, SequentialSpec};

use crate::child::{Job, Voice, What, command, say};
use crate::harness::Rng;
use crate::support::user;

/// What one process does: it works on a session for a while.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Node {
    pub url: String,
    pub session: SessionId,
    pub name: String,
    pub work_ms: u64,
    pub pause_ms: u64,
}

/// What a process asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Ask {
    Take,
    Append { epoch: u64, text: String },
    Read,
}

/// What it was told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Answer {
    Taken(u64),
    /// The entry's number.
    Appended(u64),
    Fenced,
    /// The texts of all messages.
    Found(Vec<String>),
    /// Perhaps, perhaps not.
    Unknown,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    time_ns: u128,
    ask: Option<Ask>,
    answer: Option<Answer>,
}

fn tell(ask: Option<Ask>, answer: Option<Answer>) {
    let time_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    say(&format!("node {}", serde_json::to_string(&Line { time_ns, ask, answer }).unwrap()));
}

/// A session as it should be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Spec {
    epoch: u64,
    last: Option<u64>,
    texts: Vec<String>,
}

impl SequentialSpec for Spec {
    type Op = Ask;
    type Ret = Answer;

    fn invoke(&mut self, op: &Ask) -> Answer {
        match op {
            Ask::Take => {
                self.epoch += 1;
                Answer::Taken(self.epoch)
            }
            Ask::Append { epoch, .. } if *epoch != self.epoch => Answer::Fenced,
            Ask::Append { text, .. } => {
                self.texts.push(text.clone());
                let number = self.last.map_or(0, |last| last + 1);
                self.last = Some(number);
                Answer::Appended(number)
            }
            Ask::Read => Answer::Found(self.texts.clone()),
        }
    }

    /// Entries of other kinds may lie between messages: numbers only go up.
    fn is_valid_step(&mut self, op: &Ask, ret: &Answer) -> bool {
        match (op, ret) {
            (Ask::Append { .. }, Answer::Appended(number)) => {
                let is_next = self.last.is_none_or(|last| *number > last);
                let is_taken = matches!(self.invoke(op), Answer::Appended(_));
                self.last = Some(*number);
                is_next && is_taken
            }
            _ => self.invoke(op) == *ret,
        }
    }
}

/// The work of one process.
pub async fn work(job: &Job, node: &Node) {
    let begun = Instant::now();
    let mut rng = Rng::new(job.seed);
    let (mut writer, mut count): (Option<SessionWriter>, u64) = (None, 0);
    let mut store = None;
    while begun.elapsed() < Duration::from_millis(node.work_ms) {
        tokio::time::sleep(Duration::from_millis(rng.below(node.pause_ms as usize + 1) as u64)).await;
        let open = match &store {
            Some(open) => open,
            None => match Store::open(&node.url, Options::default()).await {
                Ok(open) => store.insert(open),
                Err(_) => continue,
            },
        };
        match (rng.below(16), &writer) {
            (0..4, _) => {
                tell(Some(Ask::Read), None);
                let found = read(open, node.session).await;
                tell(None, Some(found.map_or_else(|error| unknown(&error), Answer::Found)));
            }
            (4..14, Some(own)) => {
                count += 1;
                let text = format!("{} {count}", node.name);
                tell(Some(Ask::Append { epoch: own.epoch().await.0, text: text.clone() }), None);
                let answer = match own.append(Append::new().message(user(&text))).await {
                    Ok(receipt) => Answer::Appended(receipt.first.seq.0),
                    Err(Error::Fenced { .. }) => Answer::Fenced,
                    Err(error) => unknown(&error),
                };
                if !matches!(answer, Answer::Appended(_)) {
                    writer = None;
                }
                tell(None, Some(answer));
            }
            (_, own) => {
                // Whoever holds it goes on for a while; the others take it now and then.
                if own.is_some() && !rng.chance(1) {
                    continue;
                }
                tell(Some(Ask::Take), None);
                let claim = Claim::new(node.name.clone()).take_over();
                let taken = open.write(node.session, &claim).await;
                let answer = match &taken {
                    Ok(own) => Answer::Taken(own.epoch().await.0),
                    Err(error) => unknown(error),
                };
                writer = taken.ok();
                tell(None, Some(answer));
            }
        }
    }
}

/// Says why, for whoever looks into it.
fn unknown(error: &Error) -> Answer {
    eprintln!("{error}");
    Answer::Unknown
}

async fn read(store: &Store, session: SessionId) -> Result<Vec<String>, Error> {
    let found = store.messages(session, &MessageQuery::default()).await?;
    Ok(found.iter().map(|found| found.message.text().into_owned()).collect())
}

/// What happened on a session, all processes together.
#[derive(Debug, Default)]
pub struct Outcome {
    pub acknowledged: usize,
    pub unknown: usize,
    pub fenced: usize,
}

/// How several processes meet on a store.
pub struct Meeting<'a> {
    /// The store as they see it.
    pub url: &'a str,
    /// The store as it is: the one who judges reads here.
    pub direct: &'a Store,
    pub nodes: usize,
    pub work: Duration,
    pub pause: Duration,
    pub seed: u64,
    /// What else a process's environment needs.
    pub prepare: &'a dyn Fn(&mut Command),
}

impl Meeting<'_> {
    /// Lets processes work on a session of their own, and judges what they saw.
    pub async fn hold(&self) -> Outcome {
        let first = loop {
            // The server may be away under the judge too.
            match self.direct.create(NewSession::default(), &Claim::new("the judge")).await {
                Ok(first) => break first,
                Err(error) => eprintln!("{error}"),
            }
        };
        let (session, epoch) = (first.id(), first.epoch().await.0);
        let mut voices: Vec<Voice> = (0..self.nodes)
            .map(|number| {
                let node = Node {
                    url: self.url.to_owned(),
                    session,
                    name: format!("node {number}"),
                    work_ms: self.work.as_millis() as u64,
                    pause_ms: self.pause.as_millis() as u64,
                };
                let seed = self.seed * 16 + number as u64;
                let mut command = command(&Job { store: Default::default(), seed, what: What::Node(node) });
                (self.prepare)(&mut command);
                Voice::of(command.spawn().unwrap())
            })
            .collect();
        let said = tokio::task::spawn_blocking(move || {
            voices.iter_mut().map(|voice| voice.finish().to_vec()).collect::<Vec<_>>()
        })
        .await
        .unwrap();
        // A PUT without an answer may still be on its way.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let there = loop {
            match read(self.direct, session).await {
                Ok(there) => break there,
                Err(error) => eprintln!("{error}"),
            }
        };
        // The checker calls itself for every event.
        let judge = std::thread::Builder::new().stack_size(1 << 30).spawn(move || judge(&said, epoch, &there));
        judge.unwrap().join().unwrap()
    }
}

fn judge(said: &[Vec<String>], epoch: u64, there: &[String]) -> Outcome {
    let mut lines: Vec<(usize, Line)> = Vec::new();
    for (node, heard) in said.iter().enumerate() {
        let own = heard.iter().filter_map(|line| line.strip_prefix("node "));
        lines.extend(own.map(|line| (node, serde_json::from_str(line).unwrap())));
    }
    lines.sort_by_key(|(_, line)| line.time_ns);
    let mut tester = LinearizabilityTester::new(Spec { epoch, ..Spec::default() });
    // Whoever got no answer goes on under another name: what it asked for may happen at any later time.
    let mut names: BTreeMap<usize, usize> = (0..said.len()).map(|node| (node, node)).collect();
    let (mut asked, mut outcome): (BTreeMap<usize, Ask>, Outcome) = Default::default();
    let mut acknowledged = Vec::new();
    for (node, line) in lines {
        let name = names[&node];
        if let Some(ask) = line.ask {
            asked.insert(node, ask.clone());
            tester.on_invoke(name, ask).unwrap();
        }
        match line.answer {
            None => {}
            Some(Answer::Unknown) => {
                outcome.unknown += 1;
                names.insert(node, name + said.len());
            }
            Some(answer) => {
                match (&asked[&node], &answer) {
                    (Ask::Append { text, .. }, Answer::Appended(_)) => acknowledged.push(text.clone()),
                    (_, Answer::Fenced) => outcome.fenced += 1,
                    _ => {}
                }
                tester.on_return(name, answer).unwrap();
            }
        }
    }
    // What is there at the end is what one more reader sees.
    tester.on_invoke(usize::MAX, Ask::Read).unwrap();
    tester.on_return(usize::MAX, Answer::Found(there.to_vec())).unwrap();
    for text in &acknowledged {
        let times = there.iter().filter(|found| *found == text).count();
        assert_eq!(times, 1, "{text:?} was acknowledged, and is there {times} times");
    }
    let mut unique = there.to_vec();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), there.len(), "something is there twice: {there:?}");
    assert!(tester.is_consistent(), "no order of events explains what was seen");
    outcome.acknowledged = acknowledged.len();
    outcome
}

#[test]
fn the_judge_finds_what_was_lost_doubled_or_out_of_order() {
    let said = |time_ns, ask: Option<Ask>, answer: Option<Answer>| {
        format!("node {}", serde_json::to_string(&Line { time_ns, ask, answer }).unwrap())
    };
    let append = |text: &str| Some(Ask::Append { epoch: 1, text: text.into() });
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let one = vec![
        said(1, append("a"), None),
        said(2, None, Some(Answer::Appended(1))),
        said(3, append("b"), None),
        said(4, None, Some(Answer::Appended(2))),
    ];
    let is_fine =
        |said: &[Vec<String>], there: &[&str]| std::panic::catch_unwind(|| judge(said, 1, &texts(there))).is_ok();
    assert!(is_fine(std::slice::from_ref(&one), &["a", "b"]));
    assert!(!is_fine(std::slice::from_ref(&one), &["a"]), "lost");
    assert!(!is_fine(std::slice::from_ref(&one), &["a", "b", "b"]), "doubled");
    assert!(!is_fine(std::slice::from_ref(&one), &["b", "a"]), "out of order");
    let stale = vec![said(5, Some(Ask::Read), None), said(6, None, Some(Answer::Found(texts(&["a"]))))];
    assert!(!is_fine(&[one.clone(), stale], &["a", "b"]), "a read that is behind");
    let take = vec![said(1, Some(Ask::Take), None), said(2, None, Some(Answer::Taken(2)))];
    let late = vec![said(3, append("a"), None), said(4, None, Some(Answer::Appended(1)))];
    assert!(!is_fine(&[take, late], &["a"]), "a stale epoch was not refused");
    let perhaps = vec![said(1, append("a"), None), said(2, None, Some(Answer::Unknown))];
    assert!(is_fine(std::slice::from_ref(&perhaps), &["a"]) && is_fine(&[perhaps], &[]));
}
