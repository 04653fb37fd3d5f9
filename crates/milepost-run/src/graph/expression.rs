//! CEL expressions: conditions of edges, what is remembered, what a graph gives. Compiled once, checked as far as
//! types are known, evaluated against the run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cel::common::ast::{EntryExpr, Expr, LiteralValue, operators};
use cel::objects::{Key, Map as CelMap};
use cel::{Context, IdedExpr, Program, Value as CelValue};
use milepost_document::{Node as Tree, Origin, nearest};
use serde_json::{Map, Number, Value};

use super::limits::{MAX_EXPRESSION_BYTES, MAX_EXPRESSION_PARTS};

/// A compiled expression.
#[derive(Clone)]
pub struct Expression {
    /// The text, with its place in the file.
    written: Arc<Tree>,
    program: Arc<Program>,
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

/// What is known of a value before the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Type {
    /// Anything.
    Any,
    Null,
    Bool,
    Number,
    Text,
    List,
    Map,
    /// A map whose keys are known, all of them.
    Keys(Arc<BTreeMap<String, Type>>),
}

impl Type {
    /// The type of a value.
    pub fn of(value: &Value) -> Self {
        match value {
            Value::Null => Type::Any,
            Value::Bool(_) => Type::Bool,
            Value::Number(_) => Type::Number,
            Value::String(_) => Type::Text,
            Value::Array(_) => Type::List,
            Value::Object(_) => Type::Map,
        }
    }

    /// What is known when a value is one of two types.
    pub fn or(self, other: Self) -> Self {
        if self == other { self } else { Type::Any }
    }

    pub fn word(&self) -> &'static str {
        match self {
            Type::Any => "anything",
            Type::Null => "null",
            Type::Bool => "true or false",
            Type::Number => "a number",
            Type::Text => "a text",
            Type::List => "a list",
            Type::Map | Type::Keys(_) => "a map",
        }
    }

    fn is_map(&self) -> bool {
        matches!(self, Type::Map | Type::Keys(_))
    }

    /// Whether two values may be of the same kind.
    fn may_equal(&self, other: &Self) -> bool {
        let loose = |one: &Self| matches!(one, Type::Any | Type::Null);
        loose(self) || loose(other) || self == other || self.is_map() && other.is_map()
    }
}

/// The functions that expressions may call, with what they give.
const FUNCTIONS: &[(&str, Type)] = &[
    ("size", Type::Number),
    ("contains", Type::Bool),
    ("startsWith", Type::Bool),
    ("endsWith", Type::Bool),
    ("matches", Type::Bool),
    ("int", Type::Number),
    ("uint", Type::Number),
    ("double", Type::Number),
    ("string", Type::Text),
    ("bool", Type::Bool),
    ("type", Type::Any),
    ("dyn", Type::Any),
    ("has", Type::Bool),
    ("all", Type::Bool),
    ("exists", Type::Bool),
    ("exists_one", Type::Bool),
    ("map", Type::List),
    ("filter", Type::List),
];

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
            Ok(program) => Ok(Self { written: Arc::new(written.clone()), program: Arc::new(program) }),
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

    /// Where a character of it stands.
    pub(crate) fn at(&self, line: usize, column: usize) -> Origin {
        self.written.place(line, column)
    }

    /// Finds what is wrong with the names and types, and what the whole gives.
    pub(crate) fn check(&self, names: &BTreeMap<String, Type>) -> (Type, Vec<Mistake>) {
        let mut checker = Checker { expression: self, names: names.clone(), found: Vec::new() };
        let given = checker.visit(self.program.expression());
        (given, checker.found)
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
        for (name, value) in names {
            context.add_variable_from_value(name.as_str(), to_cel(value));
        }
        let given = self.program.execute(&context).map_err(|error| tidy(&error.to_string()))?;
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

fn path(at: &IdedExpr) -> Option<Vec<String>> {
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

fn children<'e>(at: &'e IdedExpr, open: &mut Vec<&'e IdedExpr>) {
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

struct Checker<'e> {
    expression: &'e Expression,
    names: BTreeMap<String, Type>,
    found: Vec<Mistake>,
}

impl Checker<'_> {
    fn mistake(&mut self, at: &IdedExpr, why: String, instead: String) {
        let offset = self.expression.program.source_info().offset_for(at.id).map_or(0, |(start, _)| start as usize);
        let before: String = self.expression.text().chars().take(offset).collect();
        let line = before.matches('\n').count();
        let column = before.chars().rev().take_while(|c| *c != '\n').count();
        self.found.push(Mistake { line, column, why, instead });
    }

    fn unknown<'a>(&mut self, at: &IdedExpr, what: String, given: &str, known: impl Iterator<Item = &'a str> + Clone) {
        let instead = match nearest(given, known.clone()) {
            Some(name) => format!("did you mean {name}?"),
            None => listed(known),
        };
        self.mistake(at, what, instead);
    }

    fn visit(&mut self, at: &IdedExpr) -> Type {
        match &at.expr {
            Expr::Unspecified => Type::Any,
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Type::Bool,
                LiteralValue::Double(_) | LiteralValue::Int(_) | LiteralValue::UInt(_) => Type::Number,
                LiteralValue::String(_) => Type::Text,
                LiteralValue::Null => Type::Null,
                LiteralValue::Bytes(_) => Type::Any,
            },
            Expr::Ident(name) => match self.names.get(name) {
                Some(known) => known.clone(),
                None => {
                    let known: Vec<String> = self.names.keys().filter(|name| !name.starts_with('@')).cloned().collect();
                    self.unknown(at, format!("there is no {name:?} here"), name, known.iter().map(String::as_str));
                    Type::Any
                }
            },
            Expr::Select(select) => self.select(at, &select.operand, &select.field, select.test),
            Expr::List(list) => {
                list.elements.iter().for_each(|item| {
                    self.visit(item);
                });
                Type::List
            }
            Expr::Map(_) | Expr::Struct(_) => {
                let mut inner = Vec::new();
                children(at, &mut inner);
                inner.into_iter().for_each(|item| {
                    self.visit(item);
                });
                Type::Map
            }
            Expr::Comprehension(all) => {
                let range = self.visit(&all.iter_range);
                if !matches!(range, Type::Any | Type::List) && !range.is_map() {
                    let why = format!("this goes through {}, which has no items", range.word());
                    self.mistake(&all.iter_range, why, "use a list or a map".to_owned());
                }
                let given = self.visit(&all.accu_init);
                let outer = self.names.clone();
                for name in [Some(&all.iter_var), all.iter_var2.as_ref(), Some(&all.accu_var)].into_iter().flatten() {
                    self.names.insert(name.clone(), Type::Any);
                }
                self.visit(&all.loop_cond);
                self.visit(&all.loop_step);
                self.visit(&all.result);
                self.names = outer;
                given
            }
            Expr::Call(call) => {
                let target = call.target.as_deref().map(|target| self.visit(target));
                let types: Vec<Type> = call.args.iter().map(|argument| self.visit(argument)).collect();
                self.call(at, &call.func_name, target.as_ref(), &call.args, &types)
            }
        }
    }

    fn select(&mut self, at: &IdedExpr, operand: &IdedExpr, field: &str, is_test: bool) -> Type {
        let of = self.visit(operand);
        let given = match &of {
            Type::Any | Type::Map => Type::Any,
            Type::Keys(keys) => match keys.get(field) {
                Some(known) => known.clone(),
                None if is_test => Type::Any,
                None => {
                    let whose = path(operand).map_or_else(String::new, |path| path.join("."));
                    let what = format!("{whose} has no {field:?}");
                    self.unknown(at, what, field, keys.keys().map(String::as_str));
                    Type::Any
                }
            },
            other => {
                let why = format!("{} has no fields, and here {field:?} is asked of it", other.word());
                self.mistake(at, why, "ask a map for its fields".to_owned());
                Type::Any
            }
        };
        if is_test { Type::Bool } else { given }
    }

    fn call(
        &mut self,
        at: &IdedExpr,
        name: &str,
        target: Option<&Type>,
        arguments: &[IdedExpr],
        types: &[Type],
    ) -> Type {
        use operators::*;
        match (name, types) {
            (LOGICAL_AND | LOGICAL_OR | LOGICAL_NOT, _) => {
                for (argument, given) in arguments.iter().zip(types) {
                    if !matches!(given, Type::Any | Type::Bool) {
                        let why = format!("{} stands where true or false is needed", given.word());
                        self.mistake(argument, why, "compare it with something".to_owned());
                    }
                }
                Type::Bool
            }
            (NOT_STRICTLY_FALSE, _) => Type::Bool,
            (EQUALS | NOT_EQUALS, [left, right]) => {
                if !left.may_equal(right) {
                    self.differ(at, left, right, "are never equal");
                }
                Type::Bool
            }
            (LESS | LESS_EQUALS | GREATER | GREATER_EQUALS, [left, right]) => {
                let ordered = |one: &Type| matches!(one, Type::Any | Type::Number | Type::Text | Type::Bool);
                match [left, right].into_iter().find(|one| !ordered(one)) {
                    Some(other) => {
                        let why = format!("{} is neither less nor greater than anything", other.word());
                        self.mistake(at, why, "compare numbers or texts; size(…) gives a number".to_owned());
                    }
                    None if !left.may_equal(right) => self.differ(at, left, right, "have no order"),
                    None => {}
                }
                Type::Bool
            }
            (IN, [_, range]) => {
                if !matches!(range, Type::Any | Type::List) && !range.is_map() {
                    let why = format!("nothing can be in {}", range.word());
                    self.mistake(at, why, "use a list or a map; for texts, contains".to_owned());
                }
                Type::Bool
            }
            (ADD, [left, right]) => match (left, right) {
                (Type::Any, other) | (other, Type::Any) => other.clone().or(Type::Any),
                (Type::Number, Type::Number) => Type::Number,
                (Type::Text, Type::Text) => Type::Text,
                (Type::List, Type::List) => Type::List,
                _ => {
                    let why = format!("{} and {} cannot be added", left.word(), right.word());
                    self.mistake(at, why, "turn one into the other: string(…), int(…)".to_owned());
                    Type::Any
                }
            },
            (SUBSTRACT | MULTIPLY | DIVIDE | MODULO | NEGATE, _) => {
                for (argument, given) in arguments.iter().zip(types) {
                    if !matches!(given, Type::Any | Type::Number) {
                        let why = format!("{} stands where a number is needed", given.word());
                        self.mistake(argument, why, "int(…) and double(…) make numbers of texts".to_owned());
                    }
                }
                Type::Number
            }
            (CONDITIONAL, [condition, yes, no]) => {
                if !matches!(condition, Type::Any | Type::Bool) {
                    let why = format!("{} stands where true or false is needed", condition.word());
                    self.mistake(at, why, "compare it with something".to_owned());
                }
                yes.clone().or(no.clone())
            }
            (INDEX, [of, _]) => {
                if !matches!(of, Type::Any | Type::List) && !of.is_map() {
                    let why = format!("{} has no items", of.word());
                    self.mistake(at, why, "use a list or a map".to_owned());
                }
                match (of, arguments.get(1).map(|key| &key.expr)) {
                    (Type::Keys(keys), Some(Expr::Literal(LiteralValue::String(key)))) => {
                        keys.get(key.inner()).cloned().unwrap_or(Type::Any)
                    }
                    _ => Type::Any,
                }
            }
            _ => self.function(at, name, target, types),
        }
    }

    fn differ(&mut self, at: &IdedExpr, left: &Type, right: &Type, what: &str) {
        let why = format!("{} is compared with {}, and they {what}", left.word(), right.word());
        let instead = match (left, right) {
            (Type::Number, Type::Text) | (Type::Text, Type::Number) => "write the number without quotes, or use int(…)",
            _ => "compare values of one kind",
        };
        self.mistake(at, why, instead.to_owned());
    }

    fn function(&mut self, at: &IdedExpr, name: &str, target: Option<&Type>, types: &[Type]) -> Type {
        let Some((_, gives)) = FUNCTIONS.iter().find(|(own, _)| *own == name) else {
            if name.starts_with(['_', '@', '!', '-']) {
                return Type::Any;
            }
            let known = FUNCTIONS.iter().map(|(own, _)| *own);
            self.unknown(at, format!("there is no function {name:?}"), name, known);
            return Type::Any;
        };
        let first = target.or(types.first());
        let wrong = match (name, first) {
            ("contains" | "startsWith" | "endsWith" | "matches", Some(of)) => !matches!(of, Type::Any | Type::Text),
            ("size", Some(of)) => !matches!(of, Type::Any | Type::Text | Type::List) && !of.is_map(),
            _ => false,
        };
        if let (true, Some(of)) = (wrong, first) {
            let why = format!("{name} does not work on {}", of.word());
            let instead = if name == "size" { "use a text, a list or a map" } else { "use a text; for lists, in" };
            self.mistake(at, why, instead.to_owned());
        }
        gives.clone()
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
