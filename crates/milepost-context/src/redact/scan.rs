//! Finds the spans of a text that are secrets, in one pass for what they begin with and a look at
//! each place that might be one.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind, MatchKind};
use regex::{Regex, RegexSet};

use super::assign::{self, assigned};
use super::builtin::{Before, FORMS, Form, HEADERS};
use super::rules::{KeyRule, Rules};

/// How far a form is followed from where it begins, in bytes.
const WINDOW: usize = 32 * 1024;
/// A form whose letters are fewer different ones than this is a placeholder.
const LEAST_DIFFERENT: u32 = 6;

/// A secret in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: Cow<'static, str>,
    /// The lower, the surer.
    rank: u8,
}

#[derive(Clone, Copy)]
enum Lead {
    Form(usize),
    Header(usize),
    Word,
}

/// Literals, and what each leads to.
struct Leads {
    automaton: AhoCorasick,
    leads: Vec<Lead>,
}

impl Leads {
    fn new<'a>(literals: impl IntoIterator<Item = (&'a str, Lead)>, any_case: bool) -> Option<Self> {
        let (literals, leads): (Vec<&str>, Vec<Lead>) = literals.into_iter().unzip();
        let automaton = AhoCorasickBuilder::new()
            .match_kind(MatchKind::Standard)
            .ascii_case_insensitive(any_case)
            .kind(Some(AhoCorasickKind::DFA))
            .build(literals)
            .ok()?;
        Some(Self { automaton, leads })
    }
}

pub(super) struct Scanner {
    exact: Option<Leads>,
    any_case: Option<Leads>,
    forms: Vec<Regex>,
    headers: Vec<Regex>,
    keys: HashMap<String, KeyRule>,
    /// What the user's patterns match at all, then where.
    own_set: RegexSet,
    own: Vec<(String, Regex)>,
    allowed: Vec<Regex>,
}

#[allow(clippy::expect_used, reason = "the patterns are constants that a test compiles")]
fn compiled(forms: &[Form]) -> Vec<Regex> {
    forms.iter().map(|form| Regex::new(form.pattern).expect("a valid pattern")).collect()
}

impl Scanner {
    pub(super) fn new(rules: &Rules) -> Self {
        let literals = |forms: &'static [Form], lead: fn(usize) -> Lead| {
            let listed = move |(index, form): (usize, &'static Form)| {
                form.literals.iter().map(move |literal| (*literal, lead(index)))
            };
            forms.iter().enumerate().flat_map(listed)
        };
        let (mut exact, mut any_case) = (None, None);
        let named: Vec<String> = named_spellings(rules);
        let words = named.iter().map(|name| (name.as_str(), Lead::Word));
        if rules.well_known {
            exact = Leads::new(literals(FORMS, Lead::Form), false);
            let known = assign::WORDS.iter().map(|word| (*word, Lead::Word));
            any_case = Leads::new(literals(HEADERS, Lead::Header).chain(known).chain(words), true);
        } else if !named.is_empty() {
            any_case = Leads::new(words, true);
        }
        let own_set = RegexSet::new(rules.patterns.iter().map(|(_, regex)| regex.as_str())).unwrap_or_default();
        Self {
            exact,
            any_case,
            forms: if rules.well_known { compiled(FORMS) } else { Vec::new() },
            headers: if rules.well_known { compiled(HEADERS) } else { Vec::new() },
            keys: rules.keys.clone(),
            own_set,
            own: rules.patterns.clone(),
            allowed: rules.allowed.clone(),
        }
    }

    /// The secrets of a text, in order, none touching another.
    pub(super) fn scan(&self, text: &str) -> Vec<Span> {
        let mut spans = Vec::new();
        for leads in [&self.exact, &self.any_case].into_iter().flatten() {
            // What was looked at as one name is not looked at again for a word inside of it.
            let mut named_to = 0;
            for hit in leads.automaton.find_overlapping_iter(text) {
                match leads.leads.get(hit.pattern().as_usize()) {
                    Some(Lead::Form(index)) => {
                        spans.extend(form(text, hit.start(), FORMS.get(*index), self.forms.get(*index)));
                    }
                    Some(Lead::Header(index)) => {
                        spans.extend(form(text, hit.start(), HEADERS.get(*index), self.headers.get(*index)));
                    }
                    Some(Lead::Word) if hit.start() >= named_to => {
                        if let Some((start, end, kind)) = assigned(text, (hit.start(), hit.end()), &self.keys) {
                            named_to = end;
                            spans.push(Span { start, end, kind: kind.into(), rank: 2 });
                        }
                    }
                    _ => {}
                }
            }
        }
        for index in self.own_set.matches(text) {
            if let Some((kind, regex)) = self.own.get(index) {
                spans.extend(own(text, kind, regex));
            }
        }
        if spans.is_empty() {
            return spans;
        }
        let tokens = assign::tokens(text);
        spans.retain(|span| !self.is_allowed(text, span) && !inside(&tokens, span));
        merged(text, spans)
    }

    fn is_allowed(&self, text: &str, span: &Span) -> bool {
        let secret = text.get(span.start..span.end).unwrap_or_default();
        self.allowed.iter().any(|allowed| allowed.is_match(secret))
    }
}

/// How the user's keys may be spelled in a text.
fn named_spellings(rules: &Rules) -> Vec<String> {
    let mut names: Vec<String> =
        rules.keys.iter().filter(|(_, rule)| **rule == KeyRule::Named).map(|(key, _)| key.clone()).collect();
    names.extend(rules.spellings.iter().cloned());
    names.sort();
    names.dedup();
    names
}

fn own<'a>(text: &'a str, kind: &'a str, regex: &'a Regex) -> impl Iterator<Item = Span> + 'a {
    regex.captures_iter(text).filter_map(move |found| {
        let secret = found.name("secret").or_else(|| found.get(0))?;
        let token = assign::is_token(secret.as_str());
        (!secret.is_empty() && !token).then(|| Span {
            start: secret.start(),
            end: secret.end(),
            kind: Cow::Owned(kind.to_owned()),
            rank: 0,
        })
    })
}

/// Whether a span lies inside a token of an earlier redaction.
fn inside(tokens: &[Range<usize>], span: &Span) -> bool {
    let next = tokens.partition_point(|token| token.end < span.end);
    tokens.get(next).is_some_and(|token| token.start <= span.start && span.end <= token.end)
}

pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn form(text: &str, at: usize, form: Option<&Form>, regex: Option<&Regex>) -> Option<Span> {
    let (form, regex) = (form?, regex?);
    let before = text.as_bytes().get(..at)?;
    let last = before.last().copied();
    let mut start = at;
    let fits = match form.before {
        Before::Any => true,
        Before::Boundary => !last.is_some_and(is_word),
        Before::Letter => last.is_some_and(|b| b.is_ascii_alphanumeric()),
        Before::Query => matches!(last, Some(b'?' | b'&' | b';')),
        Before::Digits { least, most } => {
            let digits = before.iter().rev().take(most + 1).take_while(|b| b.is_ascii_digit()).count();
            start = at - digits;
            let ahead = start.checked_sub(1).and_then(|at| before.get(at));
            (least..=most).contains(&digits) && !ahead.is_some_and(|b| is_word(*b))
        }
    };
    if !fits {
        return None;
    }
    let end = text.floor_char_boundary(at.saturating_add(WINDOW).min(text.len()));
    let found = regex.captures(text.get(at..end)?)?;
    let (from, to) = match found.get(1) {
        Some(secret) => (at + secret.start(), at + secret.end()),
        None => (start, at + found.get(0)?.end()),
    };
    let secret = text.get(from..to)?;
    let url = form.before == Before::Letter;
    let blank = if url { assign::is_placeholder(secret) } else { is_blank(secret) };
    let header = form.kind == "authorization" && !secret.bytes().any(|b| b.is_ascii_digit());
    (!blank && !header && !assign::is_token(secret)).then(|| Span {
        start: from,
        end: to,
        kind: form.kind.into(),
        rank: if url { 2 } else { 1 },
    })
}

/// Whether a form is filled with a placeholder.
fn is_blank(secret: &str) -> bool {
    let seen = secret.bytes().fold(0u128, |seen, b| seen | 1 << (b & 0x7f));
    seen.count_ones() < LEAST_DIFFERENT || secret.contains("EXAMPLE") || secret.contains("xxxxxx")
}

/// Spans that touch become one, of the surest kind.
fn merged(text: &str, mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| (span.start, span.rank));
    let mut out: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match out.last_mut() {
            Some(last) if span.start < last.end => {
                if span.rank < last.rank {
                    last.kind = span.kind;
                    last.rank = span.rank;
                }
                last.end = last.end.max(span.end);
            }
            _ => out.push(span),
        }
    }
    debug_assert!(out.iter().all(|span| text.is_char_boundary(span.start) && text.is_char_boundary(span.end)));
    out
}
