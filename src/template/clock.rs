//! `strftime_now`: the engine host's local time, in Python's `strftime`.

use std::fmt::Write;

/// A local time, cut into its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    year: i64,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
    /// 0 is Sunday.
    weekday: u32,
    /// From 1.
    day_of_year: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl LocalTime {
    /// The local time of a clock that is `offset_minutes` ahead of UTC.
    // Every divisor is a constant other than zero.
    #[allow(clippy::integer_division_remainder_used)]
    pub fn new(unix_seconds: u64, offset_minutes: i32) -> LocalTime {
        // Far beyond any real clock, and far from any overflow.
        let seconds = i64::try_from(unix_seconds).unwrap_or(0).min(1 << 40) + i64::from(offset_minutes) * 60;
        let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        // Days to date in the proleptic Gregorian calendar, by eras of 400 years that begin in March.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let from_march = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * from_march + 2) / 153;
        let day = from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let start = usize::try_from(month - 1).ok().and_then(|at| before.get(at)).copied().unwrap_or(0);
        LocalTime {
            year,
            month: month as u32,
            day: day as u32,
            hour: (rest / 3_600) as u32,
            minute: (rest / 60 % 60) as u32,
            second: (rest % 60) as u32,
            weekday: (days + 4).rem_euclid(7) as u32,
            day_of_year: start + day as u32 + u32::from(leap && month > 2),
        }
    }

    /// `strftime(format)` in the C locale. `None` for a directive that is not known here.
    // Every divisor is a constant other than zero.
    #[allow(clippy::integer_division_remainder_used)]
    pub fn format(&self, format: &str) -> Option<String> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next()?;
            let no_pad = directive == '-';
            if no_pad {
                directive = chars.next()?;
            }
            let name = |list: &[&'static str], at: u32| list.get(at as usize).copied().unwrap_or_default();
            let month = name(&MONTHS, self.month.saturating_sub(1));
            let day = name(&DAYS, self.weekday);
            let hour12 = (self.hour + 11) % 12 + 1;
            let half = if self.hour < 12 { "AM" } else { "PM" };
            let number = |value: u32, width: usize| match no_pad {
                true => value.to_string(),
                false => format!("{value:0width$}"),
            };
            let short = |text: &'static str| text.get(..3).unwrap_or(text);
            // Writing to a String cannot fail.
            let _ = match directive {
                'Y' => write!(out, "{}", self.year),
                'y' => write!(out, "{}", number((self.year % 100) as u32, 2)),
                'm' => write!(out, "{}", number(self.month, 2)),
                'd' => write!(out, "{}", number(self.day, 2)),
                'e' => write!(out, "{:>2}", self.day),
                'H' => write!(out, "{}", number(self.hour, 2)),
                'I' => write!(out, "{}", number(hour12, 2)),
                'M' => write!(out, "{}", number(self.minute, 2)),
                'S' => write!(out, "{}", number(self.second, 2)),
                'j' => write!(out, "{}", number(self.day_of_year, 3)),
                'B' => write!(out, "{month}"),
                'b' | 'h' => write!(out, "{}", short(month)),
                'A' => write!(out, "{day}"),
                'a' => write!(out, "{}", short(day)),
                'p' => write!(out, "{half}"),
                'w' => write!(out, "{}", self.weekday),
                'u' => write!(out, "{}", if self.weekday == 0 { 7 } else { self.weekday }),
                'F' => write!(out, "{}-{:02}-{:02}", self.year, self.month, self.day),
                'T' => write!(out, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
                'R' => write!(out, "{:02}:{:02}", self.hour, self.minute),
                'D' | 'x' => write!(out, "{:02}/{:02}/{:02}", self.month, self.day, self.year % 100),
                // A time without a zone has an empty one.
                'Z' | 'z' => Ok(()),
                'n' => writeln!(out),
                't' => write!(out, "\t"),
                '%' => write!(out, "%"),
                _ => return None,
            };
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_dates_as_python_does() {
        // 2024-02-29 13:05:09 UTC, a Thursday.
        let time = LocalTime::new(1_709_211_909, 0);
        assert_eq!(
            time.format("%Y-%m-%d %H:%M:%S %A %B %j %p %I").unwrap(),
            "2024-02-29 13:05:09 Thursday February 060 PM 01"
        );
        assert_eq!(time.format("%d %b %Y, %-d %-m %y %%").unwrap(), "29 Feb 2024, 29 2 24 %");
        assert_eq!(LocalTime::new(1_709_211_909, 11 * 60).format("%F %a").unwrap(), "2024-03-01 Fri");
        assert_eq!(LocalTime::new(1_709_211_909, -14 * 60).format("%F").unwrap(), "2024-02-28");
        assert_eq!(LocalTime::new(0, 0).format("%F %A %j").unwrap(), "1970-01-01 Thursday 001");
        assert_eq!(LocalTime::new(1_735_603_200, 0).format("%F %j").unwrap(), "2024-12-31 366");
        assert_eq!(time.format("%Q"), None);
        assert_eq!(time.format("%"), None);
    }
}
