//! What the commands of experiments (`cargo xtask testbed`) have in common: options, figures with their bars,
//! the exit status.

use std::process::ExitCode;

use serde::Serialize;

/// A figure and what it should be.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    pub figure: &'static str,
    pub measured: f64,
    pub wanted: &'static str,
    pub reached: bool,
}

/// How an outcome is shown.
pub struct Presentation {
    pub as_json: bool,
    /// The file of the plot.
    pub plot: String,
}

/// The value of the option at hand.
pub type OptionValue<'a> = &'a mut dyn FnMut() -> Result<String, String>;

/// Reads the options of this process: `--json`, `--svg FILE`, and those that `take` knows.
///
/// # Errors
/// The usage, if an option is unknown or lacks its value; whatever `take` says.
pub fn read_options(
    usage: &str,
    plot: &str,
    mut take: impl FnMut(&str, OptionValue<'_>) -> Result<bool, String>,
) -> Result<Presentation, String> {
    let mut presentation = Presentation { as_json: false, plot: plot.to_owned() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| usage.to_owned());
        match word.as_str() {
            "--json" => presentation.as_json = true,
            "--svg" => presentation.plot = value()?,
            other if take(other, &mut value)? => {}
            _ => return Err(usage.to_owned()),
        }
    }
    Ok(presentation)
}

/// The number that is an option's value.
///
/// # Errors
/// What `value` says, or the usage.
pub fn number<T: std::str::FromStr>(value: OptionValue<'_>, usage: &str) -> Result<T, String> {
    value()?.parse().map_err(|_| usage.to_owned())
}

/// Writes the figures, one on a line.
pub fn print_bars(bars: &[Bar]) {
    for bar in bars {
        let reached = if bar.reached { "reached" } else { "MISSED" };
        println!("{:<42} {:>8.2}  {:<6} {reached}", bar.figure, bar.measured, bar.wanted);
    }
}

/// Failure if a bar was missed, or nothing could be measured: then it says why.
pub fn exit_code(reached: Result<bool, String>) -> ExitCode {
    match reached {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
