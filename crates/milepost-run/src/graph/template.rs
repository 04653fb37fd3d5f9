//! Templates: texts in which `{{ … }}` is filled in from the run. Nothing is included or loaded; work and size are
//! limited.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use milepost_document::nearest;
use minijinja::machinery::{Instruction, get_compiled_template};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Object;
use minijinja::{Environment, ErrorKind, Template, UndefinedBehavior};
use serde_json::{Map, Value};

use super::expression::{Mistake, listed};
use super::limits::{MAX_RENDERED_BYTES, MAX_TEMPLATE_BYTES, MAX_TEMPLATE_FUEL, MAX_TEMPLATE_PARTS};
use super::shell;
use super::types::Type;

/// Whether a text has anything to fill in.
pub(crate) fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%") || text.contains("{#")
}

/// How values become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quote {
    /// As they are.
    Plain,
    /// As they have to be written in a line for the shell to stay what they are, whatever is in them.
    Shell,
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(MAX_TEMPLATE_FUEL));
    environment.set_recursion_limit(32);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
        environment.set_syntax(syntax);
    }
    environment
}

/// What its author wants as it is, by `safe`. Other filters give texts that are safe for HTML, which means nothing here.
#[derive(Debug)]
struct AsItIs(String);

impl Object for AsItIs {
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Values that are filled in when the whole line is known.
type Values = Arc<Mutex<Vec<String>>>;

/// Lets values leave marks in the text instead of themselves.
fn set_aside(environment: &mut Environment<'_>) -> Values {
    let values = Values::default();
    let kept = Arc::clone(&values);
    let text_of = |value: &minijinja::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    environment
        .add_filter("safe", move |value: minijinja::Value| minijinja::Value::from_object(AsItIs(text_of(&value))));
    environment.set_formatter(move |out, state, value| {
        if value.is_undefined() {
            return minijinja::escape_formatter(out, state, value);
        }
        let text = text_of(value);
        let wrong = |why: &'static str| minijinja::Error::new(ErrorKind::InvalidOperation, why);
        if value.downcast_object_ref::<AsItIs>().is_some() {
            if shell::has_mark(&text) {
                return Err(wrong("a value has the character U+FDD0 or U+FDD1, which no text has"));
            }
            return out.write_str(&text).map_err(Into::into);
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.iter().map(String::len).sum::<usize>() + text.len() > MAX_RENDERED_BYTES {
            return Err(wrong("it gives more bytes than the limit MAX_RENDERED_BYTES"));
        }
        kept.push(text);
        out.write_str(&shell::mark(kept.len() - 1)).map_err(Into::into)
    });
    values
}

/// Finds values that stand in a line for the shell where nothing keeps them one word.
pub(crate) fn check_line(text: &str) -> Vec<Mistake> {
    // What is too long or does not parse is told by `check`.
    if !is_template(text) || text.len() > MAX_TEMPLATE_BYTES || parts(text) > MAX_TEMPLATE_PARTS {
        return Vec::new();
    }
    if environment().template_from_str(text).is_err() {
        return Vec::new();
    }
    shell::check(text)
}

/// Finds what is wrong with a template: its syntax, its filters, and names that are not known.
pub(crate) fn check(text: &str, names: &BTreeMap<String, Type>) -> Vec<Mistake> {
    let at_start = |why: String, instead: &str| Mistake { line: 0, column: 0, why, instead: instead.to_owned() };
    if text.len() > MAX_TEMPLATE_BYTES {
        let why =
            format!("the template has {} bytes, the limit MAX_TEMPLATE_BYTES is {MAX_TEMPLATE_BYTES}", text.len());
        return vec![at_start(why, "keep long texts in files, and read them in a node")];
    }
    if !is_template(text) {
        return Vec::new();
    }
    if parts(text) > MAX_TEMPLATE_PARTS {
        let why =
            format!("a part of the template has more words than the limit MAX_TEMPLATE_PARTS, {MAX_TEMPLATE_PARTS}");
        return vec![at_start(why, "compute part of it in a node of its own")];
    }
    let mut environment = environment();
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    let template = match environment.template_from_str(text) {
        Ok(template) => template,
        Err(error) => {
            let line = error.line().unwrap_or(1).saturating_sub(1);
            let column = error.range().map_or(0, |range| column_of(text, range.start));
            let told = error.detail().unwrap_or("it cannot be read").to_owned();
            let why = format!("the template does not parse: {told}");
            let instead = "look at the brackets and quotes there; write {{ '{{' }} for two plain brackets".to_owned();
            return vec![Mistake { line, column, why, instead }];
        }
    };
    let mut found = Vec::new();
    let mut all: Vec<String> = template.undeclared_variables(true).into_iter().collect();
    all.sort();
    for path in all {
        let parts: Vec<&str> = path.split('.').collect();
        if let Some((what, instead)) = unknown(&parts, names) {
            let (line, column) = place_of(text, &path);
            found.push(Mistake { line, column, why: what, instead });
        }
    }
    found.extend(unknown_filters(text, &template, &environment));
    found
}

/// The most words, operators and brackets between two brackets of the template. The parser goes one level down for each.
fn parts(text: &str) -> usize {
    let inside = |open: &str, close: &str| {
        let blocks = text.split(open).skip(1).map(|rest| rest.split(close).next().unwrap_or(rest));
        let count = |block: &str| {
            let marks = block.chars().filter(|c| "+-*/%.<>=!|~:,([{".contains(*c)).count();
            marks + block.split_whitespace().count()
        };
        blocks.map(count).max().unwrap_or(0)
    };
    inside("{{", "}}").max(inside("{%", "%}"))
}

/// Every path of names that a template looks at.
pub(crate) fn paths(text: &str) -> Vec<Vec<String>> {
    if !is_template(text) || text.len() > MAX_TEMPLATE_BYTES || parts(text) > MAX_TEMPLATE_PARTS {
        return Vec::new();
    }
    let environment = environment();
    let Ok(template) = environment.template_from_str(text) else { return Vec::new() };
    let mut all: Vec<String> = template.undeclared_variables(true).into_iter().collect();
    all.sort();
    all.into_iter().map(|path| path.split('.').map(str::to_owned).collect()).collect()
}

/// What is wrong with a path of names, and what to write instead.
fn unknown(path: &[&str], names: &BTreeMap<String, Type>) -> Option<(String, String)> {
    let globals = ["range", "dict", "namespace", "debug", "loop"];
    let (first, rest) = path.split_first()?;
    let suggest = |given: &str, known: &mut dyn Iterator<Item = &str>| {
        let known: Vec<&str> = known.collect();
        match nearest(given, known.iter().copied()) {
            Some(name) => format!("did you mean {name}?"),
            None => listed(known.into_iter()),
        }
    };
    let Some(mut at) = names.get(*first) else {
        if globals.contains(first) {
            return None;
        }
        return Some((
            format!("the template uses {first:?}, which is not there"),
            suggest(first, &mut names.keys().map(String::as_str)),
        ));
    };
    let mut whose = (*first).to_owned();
    for part in rest {
        let Type::Keys(keys) = at else { return None };
        match keys.get(*part) {
            Some(next) => at = next,
            None => {
                let what = format!("the template uses {whose}.{part}, which is not there");
                return Some((what, suggest(part, &mut keys.keys().map(String::as_str))));
            }
        }
        whose = format!("{whose}.{part}");
    }
    None
}

/// Every filter and test that is named has to be known, whether or not the template would come by it.
fn unknown_filters(text: &str, template: &Template<'_, '_>, environment: &Environment<'_>) -> Vec<Mistake> {
    let compiled = get_compiled_template(template);
    let mut state = environment.empty_state();
    let mut found = Vec::new();
    for instructions in std::iter::once(&compiled.instructions).chain(compiled.blocks.values()) {
        for (number, instruction) in (0..).map_while(|number| Some((number, instructions.get(number)?))) {
            let (what, name, is_known) = match instruction {
                // Asked without a value, what is there complains of that.
                Instruction::ApplyFilter(name, ..) => {
                    let asked = state.apply_filter(name, &[]).map(drop);
                    ("filter", *name, asked.err().is_none_or(|error| error.kind() != ErrorKind::UnknownFilter))
                }
                Instruction::PerformTest(name, ..) => {
                    let asked = state.perform_test(name, &[]).map(drop);
                    ("test", *name, asked.err().is_none_or(|error| error.kind() != ErrorKind::UnknownTest))
                }
                _ => continue,
            };
            if is_known {
                continue;
            }
            let span = instructions.get_span(number);
            let at = span.map_or(0, |span| place_in(text, name, span.start_offset as usize..span.end_offset as usize));
            let line = text.get(..at).unwrap_or_default().matches('\n').count();
            let why = format!("the template uses a {what} {name:?}, which is not there");
            found.push(Mistake { line, column: column_of(text, at), why, instead: format!("use a {what} of Jinja") });
        }
    }
    found
}

/// Where a filter or test is named in an expression: as its last word of that kind.
fn place_in(text: &str, name: &str, expression: Range<usize>) -> usize {
    let start = expression.start;
    let inside = text.get(expression).unwrap_or_default();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_whole = |at: &usize| {
        let before = inside.get(..*at).and_then(|before| before.chars().next_back());
        let after = inside.get(at + name.len()..).and_then(|after| after.chars().next());
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    };
    start + inside.match_indices(name).map(|(at, _)| at).filter(is_whole).last().unwrap_or(0)
}

fn column_of(text: &str, byte: usize) -> usize {
    let before = text.get(..byte).unwrap_or_default();
    before.chars().rev().take_while(|c| *c != '\n').count()
}

/// Where a path of names stands in a template, inside of brackets.
pub(crate) fn place_of(text: &str, path: &str) -> (usize, usize) {
    let part = path.split('.').next().unwrap_or(path);
    let opened = text.find("{{").into_iter().chain(text.find("{%")).min().unwrap_or(0);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let found = [path, part].into_iter().find_map(|wanted| {
        text.match_indices(wanted).map(|(at, _)| at).find(|at| {
            let before = text.get(..*at).and_then(|before| before.chars().next_back());
            let after = text.get(at + wanted.len()..).and_then(|after| after.chars().next());
            *at >= opened && !before.is_some_and(|c| is_word(c) || c == '.') && !after.is_some_and(is_word)
        })
    });
    let at = found.unwrap_or(0);
    let before = text.get(..at).unwrap_or_default();
    (before.matches('\n').count(), column_of(text, at))
}

/// Fills a template in.
pub fn render(text: &str, names: &Map<String, Value>, quote: Quote) -> Result<String, String> {
    if !is_template(text) {
        return Ok(text.to_owned());
    }
    if text.len() > MAX_TEMPLATE_BYTES || parts(text) > MAX_TEMPLATE_PARTS {
        return Err(format!(
            "it passes MAX_TEMPLATE_BYTES, {MAX_TEMPLATE_BYTES}, or MAX_TEMPLATE_PARTS, {MAX_TEMPLATE_PARTS}"
        ));
    }
    let mut environment = environment();
    let aside = match quote {
        Quote::Plain => None,
        Quote::Shell => match shell::forbidden(text) {
            Some(mistake) => return Err(format!("{}; {}", mistake.why, mistake.instead)),
            None => Some(set_aside(&mut environment)),
        },
    };
    let rendered = environment.render_str(text, minijinja::Value::from(minijinja::value::Serde(names)));
    let mut rendered = rendered.map_err(|error| match error.kind() {
        ErrorKind::OutOfFuel => format!("it does more work than the limit MAX_TEMPLATE_FUEL, {MAX_TEMPLATE_FUEL}"),
        ErrorKind::UndefinedError if let Some(missing) = missing(text, names) => missing,
        _ => {
            let told: String = error.to_string().lines().next().unwrap_or_default().chars().take(300).collect();
            told.replace(" (in <string>:1)", "")
        }
    })?;
    if let Some(values) = aside {
        let values = std::mem::take(&mut *values.lock().unwrap_or_else(PoisonError::into_inner));
        rendered = shell::fill(&rendered, &values)?;
    }
    if rendered.len() > MAX_RENDERED_BYTES {
        return Err(format!("it gives {} bytes, the limit MAX_RENDERED_BYTES is {MAX_RENDERED_BYTES}", rendered.len()));
    }
    Ok(rendered)
}

/// Which name a template uses that has no value, and why that may be.
fn missing(text: &str, names: &Map<String, Value>) -> Option<String> {
    let path = paths(text).into_iter().find(|path| {
        let mut at = names.get(path.first().map_or("", String::as_str));
        for part in path.iter().skip(1) {
            at = match at {
                Some(Value::Object(map)) => map.get(part),
                // What a skipped node gives is null.
                Some(Value::Null) | None => None,
                // What lists and texts have of their own is not looked at.
                Some(_) => return false,
            };
        }
        at.is_none()
    })?;
    let name = path.join(".");
    Some(match path.as_slice() {
        [first, output, ..] if first == "outputs" && is_none(names, output) => {
            format!(
                "{name} is not there: {output} was skipped or has not run; \
                 write {{{{ outputs.{output} | default('…') }}}}, or an edge from the node that gives it"
            )
        }
        _ => format!("{name} is not there; write {{{{ {name} | default('…') }}}} where it may be missing"),
    })
}

fn is_none(names: &Map<String, Value>, output: &str) -> bool {
    names.get("outputs").is_some_and(|all| all.get(output).is_none_or(Value::is_null))
}
