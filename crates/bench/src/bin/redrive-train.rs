//! Trains the classifier's model. Without arguments it writes the weights into the source tree, from which
//! they are compiled into the program. `--check` only reports whether they match the training text.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a command line")]

use redrive_bench::training;
use std::path::Path;
use std::process::ExitCode;

/// The path of the weights, relative to this crate.
const WEIGHTS: &str = "../core/src/classify/weights.bin";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("redrive-train: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let check = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--check"] => true,
        _ => return Err("usage: redrive-train [--check]".into()),
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(WEIGHTS);
    let rows = training::read(training::TEXT)?;
    let model = training::train(&rows);
    let bytes = model.to_bytes();
    println!("{} rows, {} features, {} bytes", rows.len(), model.len(), bytes.len());
    if check {
        let same = std::fs::read(&path)? == bytes;
        println!(
            "{}",
            if same { "the weights are up to date" } else { "the weights do not match the training text" }
        );
        return Ok(if same { ExitCode::SUCCESS } else { ExitCode::from(1) });
    }
    std::fs::write(&path, bytes)?;
    Ok(ExitCode::SUCCESS)
}
