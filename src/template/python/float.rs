//! Python's spelling of floats.

/// `repr(value)`: the shortest digits that read back the same, with an exponent below 1e-4 and from 1e16 on.
pub fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let magnitude = value.abs();
    if value == 0.0 || (1e-4..1e16).contains(&magnitude) {
        let mut text = value.to_string();
        if !text.contains('.') {
            text.push_str(".0");
        }
        return text;
    }
    // Rust writes 1.5e300 and 1e-7 where Python writes 1.5e+300 and 1e-07; the digits are the same.
    let text = format!("{value:e}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return text;
    };
    match exponent.strip_prefix('-') {
        Some(exponent) => format!("{digits}e-{exponent:0>2}"),
        None => format!("{digits}e+{exponent:0>2}"),
    }
}

/// Whether Rust's own spelling of a float in a template is another one.
pub fn needs_python(value: f64) -> bool {
    !(value == 0.0 || (1e-4..1e16).contains(&value.abs()))
}
