//! CEL expressions: conditions of edges, what is remembered, what a graph gives. Compiled once, checked as far as
//! types are known, evaluated against the run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cel::common::ast::{EntryExpr, Expr, LiteralValue, operators};
use cel::objects::{Key, Map as CelMap};
use cel::{Context, IdedExpr, Program, Value as CelValue};
use milepost_document::{Node as Tree, Origin};
use serde_json::{Map, Number, Value};

use super::limits::{MAX_EXPRESSION_BYTES, MAX_EXPRESSION_PARTS};
use super::numbers;
use super::types::{self, Type};

/// A compiled expression.
#[derive(Clone)]
pub struct Expression {
    /// The text, with its place in the file.
    written: Arc<Tree>,
    program: Arc<Program>,
    /// The same, with numbers that mix.
    mixing: Arc<IdedExpr>,
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({:?})", self.text())
    }
}

/// What is wrong with an expression, and with which of its characters (line and column from 0).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub line: usize,
    pub column: usize,
    pub why: String,
    pub instead: String,
}

impl Expression {
    /// Compiles an expression.
    pub(crate) fn compile(written: &Tree) -> Result<Self, Mistake> {
        let text = written.text().unwrap_or_default();
        let at_start = |why: String, instead: &str| Mistake { line: 0, column: 0, why, instead: instead.to_owned() };
        if text.len() > MAX_EXPRESSION_BYTES {
            let why = format!(
                "the expression has {} bytes, the limit MAX_EXPRESSION_BYTES is {MAX_EXPRESSION_BYTES}",
                text.len()
            );
            return Err(at_start(why, "compute part of it in a node of its own"));
        }
        if text.trim().is_empty() {
            return Err(at_start("the expression is empty".to_owned(), "write a condition, such as memory.count > 3"));
        }
        if parts(text) > MAX_EXPRESSION_PARTS {
            let why = format!("it has more operators than the limit MAX_EXPRESSION_PARTS, {MAX_EXPRESSION_PARTS}");
            return Err(at_start(why, "compute part of it in a node of its own"));
        }
        match Program::compile(text) {
            Ok(program) => {
                let mut mixing = program.expression().clone();
                numbers::mix(&mut mixing);
                Ok(Self { written: Arc::new(written.clone()), program: Arc::new(program), mixing: Arc::new(mixing) })
            }
            Err(errors) => {
                let first = errors.errors.first();
                let place = |n: isize| usize::try_from(n).unwrap_or(0).saturating_sub(1);
                let (line, column) = first.map_or((0, 0), |error| (place(error.pos.0), place(error.pos.1)));
                let told = first.map_or_else(String::new, |error| tidy(&error.msg));
                Err(Mistake {
                    line,
                    column,
                    why: format!("this does not parse as CEL: {told}"),
                    instead: hint(text).to_owned(),
                })
            }
        }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        self.written.text().unwrap_or_default()
    }

    pub(super) fn root(&self) -> &IdedExpr {
        self.program.expression()
    }

    /// Where a part of it begins, in characters.
    pub(super) fn offset(&self, part: &IdedExpr) -> usize {
        self.program.source_info().offset_for(part.id).map_or(0, |(start, _)| start as usize)
    }

    /// Where a character of it stands.
    pub(crate) fn at(&self, line: usize, column: usize) -> Origin {
        self.written.place(line, column)
    }

    /// Finds what is wrong with the names and types, and what the whole gives.
    pub(crate) fn check(&self, names: &BTreeMap<String, Type>) -> (Type, Vec<Mistake>) {
        types::check(self, names)
    }

    /// Every path of names that it looks at, such as `memory.count`.
    pub(crate) fn paths(&self) -> Vec<Vec<String>> {
        let mut out = Vec::new();
        let mut open = vec![self.program.expression()];
        while let Some(at) = open.pop() {
            if let Some(path) = path(at) {
                out.push(path);
                continue;
            }
            children(at, &mut open);
        }
        out
    }

    /// Evaluates it.
    pub fn evaluate(&self, names: &Map<String, Value>) -> Result<Value, String> {
        let mut context = Context::default();
        numbers::teach(&mut context).map_err(|error| error.to_string())?;
        for (name, value) in names {
            context.add_variable_from_value(name.as_str(), to_cel(value));
        }
        let given = context.resolve(&self.mixing).map_err(|error| tidy(&error.to_string()))?;
        from_cel(&given)
    }

    /// Evaluates a condition.
    pub fn holds(&self, names: &Map<String, Value>) -> Result<bool, String> {
        match self.evaluate(names)? {
            Value::Bool(holds) => Ok(holds),
            other => Err(format!("it gives {}, not true or false", Type::of(&other).word())),
        }
    }
}

/// How many operators, points and brackets there are outside of quotes. The parser goes one level down for each.
fn parts(text: &str) -> usize {
    let (mut count, mut quote) = (0, None);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => {
                chars.next();
            }
            (Some(own), c) if own == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, c) => count += usize::from("+-*/%.<>=!&|?:,([{".contains(c)),
        }
    }
    count
}

/// What was probably meant by something that is no CEL.
fn hint(text: &str) -> &'static str {
    let lower = text.to_ascii_lowercase();
    if lower.contains(" and ") || lower.contains(" or ") || lower.starts_with("not ") || lower.contains(" not ") {
        return "CEL writes && for and, || for or, ! for not";
    }
    if text.contains("{{") {
        return "this is an expression, not a template: write it without {{ }}";
    }
    if text.contains('=')
        && !text.contains("==")
        && !text.contains("<=")
        && !text.contains(">=")
        && !text.contains("!=")
    {
        return "CEL writes == for equal";
    }
    "look at the brackets, quotes and operators there"
}

/// The names that would have done.
pub(super) fn listed<'a>(known: impl Iterator<Item = &'a str>) -> String {
    match known.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "nothing is there yet: add it first".to_owned(),
        all => format!("what is known: {all}"),
    }
}

/// The first line of what the parser says, without the long list of what it expected.
fn tidy(told: &str) -> String {
    let line = told.lines().next().unwrap_or_default();
    let line = line.strip_prefix("Syntax error: ").unwrap_or(line);
    let short = line.split(" expecting ").next().unwrap_or(line);
    if short.contains("<EOF>") {
        return "it ends too early".to_owned();
    }
    short.chars().take(200).collect()
}

pub(super) fn path(at: &IdedExpr) -> Option<Vec<String>> {
    match &at.expr {
        Expr::Ident(name) => Some(vec![name.clone()]),
        Expr::Select(select) => {
            let mut path = path(&select.operand)?;
            path.push(select.field.clone());
            Some(path)
        }
        Expr::Call(call) if call.func_name == operators::INDEX && call.target.is_none() => {
            let [operand, key] = call.args.as_slice() else { return None };
            let Expr::Literal(LiteralValue::String(key)) = &key.expr else { return None };
            let mut path = path(operand)?;
            path.push(key.inner().to_owned());
            Some(path)
        }
        _ => None,
    }
}

pub(super) fn children<'e>(at: &'e IdedExpr, open: &mut Vec<&'e IdedExpr>) {
    match &at.expr {
        Expr::Call(call) => {
            open.extend(call.target.as_deref());
            open.extend(&call.args);
        }
        Expr::Comprehension(all) => {
            open.extend([&all.iter_range, &all.accu_init, &all.loop_cond, &all.loop_step, &all.result]);
        }
        Expr::List(list) => open.extend(&list.elements),
        Expr::Map(map) => map.entries.iter().for_each(|entry| entry_children(&entry.expr, open)),
        Expr::Struct(all) => all.entries.iter().for_each(|entry| entry_children(&entry.expr, open)),
        Expr::Select(select) => open.push(&select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}

fn entry_children<'e>(entry: &'e EntryExpr, open: &mut Vec<&'e IdedExpr>) {
    match entry {
        EntryExpr::StructField(field) => open.push(&field.value),
        EntryExpr::MapEntry(entry) => open.extend([&entry.key, &entry.value]),
    }
}

/// A JSON value for an expression. Whole numbers are `int`, whatever their sign.
fn to_cel(value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(flag) => CelValue::Bool(*flag),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => CelValue::Int(whole),
            (None, Some(real)) => CelValue::Float(real),
            (None, None) => CelValue::Null,
        },
        Value::String(text) => CelValue::String(Arc::new(text.clone())),
        Value::Array(items) => CelValue::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(map) => {
            let map = map.iter().map(|(key, item)| (Key::from(key.as_str()), to_cel(item))).collect();
            CelValue::Map(CelMap { map: Arc::new(map) })
        }
    }
}

fn from_cel(value: &CelValue) -> Result<Value, String> {
    Ok(match value {
        CelValue::Null => Value::Null,
        CelValue::Bool(flag) => Value::Bool(*flag),
        CelValue::Int(number) => Value::from(*number),
        CelValue::UInt(number) => Value::from(*number),
        CelValue::Float(number) => {
            let number = Number::from_f64(*number);
            Value::Number(number.ok_or_else(|| "it gives a number that JSON does not have".to_owned())?)
        }
        CelValue::String(text) => Value::String(text.as_ref().clone()),
        CelValue::List(items) => Value::Array(items.iter().map(from_cel).collect::<Result<_, _>>()?),
        CelValue::Map(map) => {
            let mut out = Map::new();
            for (key, item) in map.map.iter() {
                out.insert(key.to_string(), from_cel(item)?);
            }
            Value::Object(out)
        }
        other => return Err(format!("it gives a {}, which cannot be kept", other.type_of())),
    })
}
