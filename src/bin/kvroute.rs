//! The kvroute command line; see [`kvroute::cli`].

fn main() -> std::process::ExitCode {
    kvroute::cli::main()
}
