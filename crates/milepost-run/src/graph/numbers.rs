//! Whole and real numbers in one expression. JSON has one kind of number and CEL has several, which it does not add up: `7.5 + 1`
//! would fail when it is too late. So operators become functions that make both sides real where one is.

use cel::common::ast::{EntryExpr, Expr, operators};
use cel::{Context, DeclarationError, ExecutionError, IdedExpr, ResolveResult, Value};

/// Operators, and the functions that stand in for them.
const MIXED: [(&str, &str); 5] = [
    (operators::ADD, "@mixed_add"),
    (operators::SUBSTRACT, "@mixed_subtract"),
    (operators::MULTIPLY, "@mixed_multiply"),
    (operators::DIVIDE, "@mixed_divide"),
    (operators::MODULO, "@mixed_modulo"),
];

/// Lets the operators of an expression take numbers of both kinds.
pub(super) fn mix(at: &mut IdedExpr) {
    match &mut at.expr {
        Expr::Call(call) => {
            call.target.as_deref_mut().into_iter().chain(&mut call.args).for_each(mix);
            // Lists that grow item by item are never numbers, and are not to be copied each time.
            let is_list = call.args.iter().any(|argument| matches!(argument.expr, Expr::List(_)));
            let mixed = MIXED.iter().find(|(operator, _)| *operator == call.func_name && call.args.len() == 2);
            if let Some((_, mixed)) = mixed.filter(|_| !is_list) {
                call.func_name = (*mixed).to_owned();
            }
        }
        Expr::Comprehension(all) => {
            [&mut all.iter_range, &mut all.accu_init, &mut all.loop_cond, &mut all.loop_step, &mut all.result]
                .into_iter()
                .for_each(mix);
        }
        Expr::List(list) => list.elements.iter_mut().for_each(mix),
        Expr::Map(map) => map.entries.iter_mut().for_each(|entry| mix_entry(&mut entry.expr)),
        Expr::Struct(all) => all.entries.iter_mut().for_each(|entry| mix_entry(&mut entry.expr)),
        Expr::Select(select) => mix(&mut select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}

fn mix_entry(entry: &mut EntryExpr) {
    match entry {
        EntryExpr::StructField(field) => mix(&mut field.value),
        EntryExpr::MapEntry(entry) => {
            mix(&mut entry.key);
            mix(&mut entry.value);
        }
    }
}

/// Makes the functions known.
pub(super) fn teach(context: &mut Context) -> Result<(), DeclarationError> {
    let [add, subtract, multiply, divide, modulo] = MIXED.map(|(_, mixed)| mixed);
    context.add_function(add, |left: Value, right: Value| {
        let (left, right) = alike(left, right);
        left + right
    })?;
    context.add_function(subtract, |left: Value, right: Value| {
        let (left, right) = alike(left, right);
        left - right
    })?;
    context.add_function(multiply, |left: Value, right: Value| {
        let (left, right) = alike(left, right);
        left * right
    })?;
    context.add_function(divide, |left: Value, right: Value| {
        // Real numbers divide by zero as CEL says; a whole zero is a mistake, whatever it divides.
        if matches!(right, Value::Int(0) | Value::UInt(0)) {
            return Err(ExecutionError::DivisionByZero(left));
        }
        let (left, right) = alike(left, right);
        left / right
    })?;
    context.add_function(modulo, |left: Value, right: Value| -> ResolveResult {
        match alike(left, right) {
            (left @ Value::Float(_), Value::Float(0.0)) => Err(ExecutionError::RemainderByZero(left)),
            (Value::Float(left), Value::Float(right)) => Ok(Value::Float(left % right)),
            (left, right) => left % right,
        }
    })
}

/// Both real, where one is.
#[allow(clippy::cast_precision_loss, reason = "so are the numbers of JSON compared")]
fn alike(left: Value, right: Value) -> (Value, Value) {
    match (left, right) {
        (Value::Int(left), right @ Value::Float(_)) => (Value::Float(left as f64), right),
        (Value::UInt(left), right @ Value::Float(_)) => (Value::Float(left as f64), right),
        (left @ Value::Float(_), Value::Int(right)) => (left, Value::Float(right as f64)),
        (left @ Value::Float(_), Value::UInt(right)) => (left, Value::Float(right as f64)),
        other => other,
    }
}
