//! The types of expressions, as far as they are known before the run.

use std::collections::BTreeMap;
use std::sync::Arc;

use cel::IdedExpr;
use cel::common::ast::{Expr, LiteralValue, operators};
use milepost_document::nearest;
use serde_json::Value;

use super::expression::{Expression, Mistake, children, listed, path};

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

/// Finds what is wrong with the names and types of an expression, and what the whole gives.
pub(super) fn check(expression: &Expression, names: &BTreeMap<String, Type>) -> (Type, Vec<Mistake>) {
    let mut checker = Checker { expression, names: names.clone(), found: Vec::new() };
    let given = checker.visit(expression.root());
    (given, checker.found)
}

struct Checker<'e> {
    expression: &'e Expression,
    names: BTreeMap<String, Type>,
    found: Vec<Mistake>,
}

impl Checker<'_> {
    fn mistake(&mut self, at: &IdedExpr, why: String, instead: String) {
        let offset = self.expression.offset(at);
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
