//! `init`: writes a commented `redrive.toml` to start from. It never overwrites an existing file.

use crate::config::DEFAULT_PATH;
use crate::connect::App;
use crate::exit_code::{CliError, CommandResult, ExitCode};
use std::io::Write as _;
use std::path::Path;

/// The file. Every line that begins with `# ` and a key is valid once the `# ` is removed.
const TEMPLATE: &str = include_str!("init.toml");

/// Runs `init`.
pub(crate) fn run(app: &App) -> CommandResult {
    let path = app.config_path.as_deref().unwrap_or_else(|| Path::new(DEFAULT_PATH));
    let unwritable = |error: std::io::Error| CliError::io(format_args!("write {}", path.display()), &error);
    let mut file = std::fs::File::create_new(path).map_err(|error| {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            let what = format!("{} is there already; it was not changed", path.display());
            return CliError::new(ExitCode::Refused, what)
                .hint("name another file with --config, or remove this one first");
        }
        unwritable(error)
    })?;
    file.write_all(TEMPLATE.as_bytes()).map_err(unwritable)?;
    app.out.note(&format!("wrote {}; uncomment the settings you need", path.display()));
    app.out.note("next: redrive enqueue demo --payload hello, then redrive lease demo");
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_valid_as_it_is_and_with_every_example_uncommented() {
        crate::config::parse(TEMPLATE).unwrap();
        let is_example = |rest: &str| rest.starts_with('[') || rest.contains(" = ");
        let uncommented: String = TEMPLATE
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest) if is_example(rest) => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let config = crate::config::parse(&uncommented).unwrap();
        assert_eq!(config.queues.len(), 1);
        assert!(config.data.is_some() && config.actor.is_some());
    }
}
