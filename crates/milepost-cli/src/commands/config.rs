//! Looking at the configuration.

use std::process::ExitCode;

use anyhow::Result;
use milepost::config::{Diagnostic, Origin, Severity, check, check_variables};
use serde_json::json;

use crate::app::App;
use crate::args::Config;
use crate::out::{Table, plain};

pub fn run(app: &mut App, command: Config) -> Result<ExitCode> {
    match command {
        Config::Check { file } => {
            let mut found = match file {
                Some(file) => check(&file),
                None => app.loader()?.check(),
            };
            let names: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
            found.extend(check_variables(names.iter().map(String::as_str)));
            report(app, &found)
        }
        Config::Show { part, changed } => show(app, part.as_deref(), changed).map(|()| ExitCode::SUCCESS),
        Config::Path => {
            let found = app.loader()?.find().map_err(|problem| anyhow::anyhow!("{problem}"))?;
            match found {
                path if app.out.json => app.out.json(&json!({ "path": path }))?,
                Some(path) => app.out.line(path.display().to_string())?,
                None => app.out.note("there is no configuration file: defaults and the environment are in force"),
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn report(app: &App, found: &[Diagnostic]) -> Result<ExitCode> {
    let has_errors = found.iter().any(|problem| problem.severity == Severity::Error);
    let code = if has_errors { ExitCode::from(2) } else { ExitCode::SUCCESS };
    if app.out.json {
        let list: Vec<_> = found
            .iter()
            .map(|problem| {
                let severity = if problem.severity == Severity::Error { "error" } else { "warning" };
                json!({ "severity": severity, "place": problem.origin.to_string(), "key": problem.key, "why": problem.why, "instead": problem.instead })
            })
            .collect();
        app.out.json(&json!({ "problems": list }))?;
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
        app.out.line(app.out.styles.good("no mistakes"))?;
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
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let from = row.origin.to_string();
            let from =
                if row.origin == Origin::Default { app.out.styles.dim(&from) } else { app.out.styles.info(&from) };
            let value = row.value.as_str().map_or_else(|| row.value.to_string(), str::to_owned);
            vec![row.key.clone(), plain(&value), from, row.about.to_owned()]
        })
        .collect();
    if rows.is_empty() {
        app.out.note("no settings like that: `milepost config show` shows them all");
        return Ok(());
    }
    let head = &["SETTING", "VALUE", "FROM", "WHAT IT IS"];
    app.out.table(Table { head, rows, shrink: &[3, 1, 2], drop: &[3], ..Table::default() })
}
