//! The command line of the accuracy measurements. Exit code 0: measured; 2: it could not be measured.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a command line")]

use redrive_bench::accuracy::classes;
use std::process::ExitCode;

const USAGE: &str = "\
redrive-accuracy classes FILE.jsonl [--table off] [--leave-one-out]";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let words: Vec<String> = words.collect();
    match run(&command, &words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("redrive-accuracy: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(command: &str, words: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    match command {
        "classes" => measure_classes(words),
        _ => Err(USAGE.into()),
    }
}

fn measure_classes(words: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let mut plan = classes::Plan { table: true, leave_one_out: false };
    let mut file = None;
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--table" => {
                plan.table = match words.next() {
                    Some("on") => true,
                    Some("off") => false,
                    _ => return Err("--table is on or off".into()),
                }
            }
            "--leave-one-out" => plan.leave_one_out = true,
            path if file.is_none() && !path.starts_with('-') => file = Some(path),
            _ => return Err(USAGE.into()),
        }
    }
    let path = file.ok_or(USAGE)?;
    let text = std::fs::read_to_string(path).map_err(|error| format!("failed to read {path}: {error}"))?;
    println!("{}", classes::measure(&classes::read(&text)?, plan)?);
    Ok(())
}
