//! Looking at the configuration.

use std::process::ExitCode;

use anyhow::Result;
use milepost::config::{Diagnostic, Explained, Origin, Severity, check};
use serde_json::json;
use unicode_width::UnicodeWidthStr;

use crate::app::App;
use crate::args::Config;
use crate::out::{Table, plain, wrap};

pub fn run(app: &mut App, command: Config) -> Result<ExitCode> {
    match command {
        Config::Check { file } => {
            let (mut found, loader) = match file {
                Some(file) => (check(&file), app.loader()?.file(file)),
                None => (app.loader()?.check(), app.loader()?),
            };
            let names: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
            found.extend(loader.check_variables(names.iter().map(String::as_str)));
            report(app, &found, "no mistakes", serde_json::Value::Null)
        }
        Config::Show { part, changed } => show(app, part.as_deref(), changed).map(|()| ExitCode::SUCCESS),
        Config::Path => {
            let found = app.loader()?.find()?;
            match found {
                path if app.out.json => app.out.json(&json!({ "path": path }))?,
                Some(path) => app.out.line(path.display().to_string())?,
                None => app.out.note("there is no configuration file: defaults and the environment are in force"),
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What was found in a file: each mistake with its place. `clean` is said when there is none; `more` goes to programs.
pub fn report(app: &App, found: &[Diagnostic], clean: &str, more: serde_json::Value) -> Result<ExitCode> {
    let has_errors = found.iter().any(|problem| problem.severity == Severity::Error);
    let code = if has_errors { ExitCode::from(2) } else { ExitCode::SUCCESS };
    if app.out.json {
        let list: Vec<_> = found
            .iter()
            .map(|problem| {
                let severity = if problem.severity == Severity::Error { "error" } else { "warning" };
                let (line, column) = match &problem.origin {
                    Origin::File { line, column, .. } if *line > 0 => (Some(line), Some(column)),
                    _ => (None, None),
                };
                json!({
                    "severity": severity, "place": problem.origin.to_string(), "line": line, "column": column,
                    "key": problem.key, "why": problem.why, "instead": problem.instead,
                })
            })
            .collect();
        let mut told = json!({ "problems": list });
        if let (Some(told), serde_json::Value::Object(more)) = (told.as_object_mut(), more) {
            told.extend(more);
        }
        app.out.json(&told)?;
        return Ok(code);
    }
    for problem in found {
        let word = match problem.severity {
            Severity::Error => app.out.styles.error("error:"),
            Severity::Warning => app.out.styles.warn("warning:"),
        };
        app.out.line(format!("{word} {}", plain(&problem.to_string())))?;
    }
    if found.is_empty() {
        app.out.line(app.out.styles.good(clean))?;
    }
    Ok(code)
}

fn show(app: &App, part: Option<&str>, changed: bool) -> Result<()> {
    let settings = app.settings()?;
    let rows: Vec<_> = settings
        .explain()
        .into_iter()
        .filter(|row| part.is_none_or(|part| row.key.contains(part)))
        .filter(|row| !changed || row.origin != Origin::Default)
        .collect();
    if app.out.json {
        let list: Vec<_> = rows
            .iter()
            .map(
                |row| json!({ "key": row.key, "value": row.value, "from": row.origin.to_string(), "about": row.about }),
            )
            .collect();
        return app.out.json(&list);
    }
    if rows.is_empty() {
        app.out.note("no settings like that: `milepost config show` shows them all");
        return Ok(());
    }
    let said = |row: &Explained| {
        let value = row.value.as_str().map_or_else(|| row.value.to_string(), str::to_owned);
        [row.key.clone(), plain(&value), row.origin.to_string()]
    };
    let widest = |at: usize| rows.iter().map(|row| said(row)[at].width()).max().unwrap_or(0);
    // Nothing of what is in force is cut off.
    if (0..3).map(|at| widest(at) + 2).sum::<usize>() > app.out.width() {
        return rows.iter().try_for_each(|row| show_below(app, row, &said(row)));
    }
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let [key, value, from] = said(row);
            let from =
                if row.origin == Origin::Default { app.out.styles.dim(&from) } else { app.out.styles.info(&from) };
            vec![key, value, from, row.about.to_owned()]
        })
        .collect();
    let head = &["SETTING", "VALUE", "FROM", "WHAT IT IS"];
    app.out.table(Table { head, rows, shrink: &[3], drop: &[3], ..Table::default() })
}

/// A setting where there is little room: its value, and below it where that is from and what it is for.
fn show_below(app: &App, row: &Explained, [key, value, from]: &[String; 3]) -> Result<()> {
    let width = app.out.width();
    wrap(&format!("{key}: {value}"), width).iter().try_for_each(|line| app.out.line(line.trim_end()))?;
    let style = |line: &str| match row.origin == Origin::Default {
        true => app.out.styles.dim(line),
        false => app.out.styles.info(line),
    };
    let about = if row.about.is_empty() { String::new() } else { format!("; {}", row.about) };
    let below = wrap(&format!("{from}{about}"), width.saturating_sub(4));
    below.iter().try_for_each(|line| app.out.line(style(&format!("    {}", line.trim_end()))))
}
