//! The command line of a bench.

/// Stops with the usage when it is asked for, and at what is no option. Gives whether JSON is wanted.
#[allow(dead_code)] // some have names, too
pub fn options(usage: &str) -> bool {
    options_and_names(usage, &[]).0
}

/// The same, and which of these names are wanted: all, unless some are given.
pub fn options_and_names<'a>(usage: &str, names: &[&'a str]) -> (bool, Vec<&'a str>) {
    let (mut json, mut wanted) = (false, Vec::new());
    for argument in std::env::args().skip(1) {
        if let Some(name) = names.iter().find(|name| **name == argument) {
            wanted.push(*name);
            continue;
        }
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
    (json, if wanted.is_empty() { names.to_vec() } else { wanted })
}
