//! The binary `redrive`. Everything it does is in the library beside it.

fn main() -> std::process::ExitCode {
    redrive_cli::main()
}
