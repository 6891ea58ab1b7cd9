//! The command line of a bench.

/// Stops with the usage when it is asked for, and at what is no option. Gives whether JSON is wanted.
pub fn options(usage: &str) -> bool {
    let mut json = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--json" => json = true,
            // Cargo adds it.
            "--bench" => {}
            "-h" | "--help" => {
                println!("{usage}");
                std::process::exit(0);
            }
            other => {
                eprintln!("{other}: no such option\n\n{usage}");
                std::process::exit(2);
            }
        }
    }
    json
}
