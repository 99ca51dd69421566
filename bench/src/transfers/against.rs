//! Whether ours has become slower than an earlier table says.
//!
//! Machines differ, and one differs from itself by the hour. So the earlier rates are scaled by what the
//! peers do now: the median over the peers of a case of rate now over rate then. With fewer than three peers
//! in both, nothing is scaled.

use serde_json::Value;

use crate::measure::median;

const AT_LEAST: f64 = 0.9;
const PEERS_TO_SCALE: usize = 3;

struct Row<'a> {
    case: &'a str,
    program: &'a str,
    mb_per_s: Option<f64>,
}

/// Rows of a file: one JSON object a line, or one array.
pub(crate) fn parse(text: &str) -> Result<Vec<Value>, String> {
    let mut rows = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match value.map_err(|error| format!("the earlier table: {error}"))? {
            Value::Array(more) => rows.extend(more),
            row => rows.push(row),
        }
    }
    if rows.iter().any(|row| !row["case"].is_string() || !row["program"].is_string()) {
        return Err("the earlier table: a row without case or program".into());
    }
    Ok(rows)
}

/// One line for each row of ours that is in the earlier table; those that have fallen behind are apart.
pub(crate) fn compare(earlier: &[Value], now: &[Value]) -> (Vec<String>, Vec<String>) {
    let (earlier, now) = (rows(earlier), rows(now));
    let (mut held, mut fallen) = (Vec::new(), Vec::new());
    for old in earlier.iter().filter(|row| row.program.starts_with("longhaul")) {
        let (Some(then), Some(new)) = (old.mb_per_s, find(&now, old)) else { continue };
        let scale = scale(&earlier, &now, old.case);
        let name = format!("{} {}", old.case, old.program);
        let Some(rate) = new.mb_per_s else {
            fallen.push(format!("{name}: {then:.0} MB/s then, failed now"));
            continue;
        };
        let ratio = rate / (then * scale);
        let line =
            format!("{name}: {rate:.0} MB/s, {ratio:.2} of {then:.0} × {scale:.2} (what the peers do now)");
        if ratio < AT_LEAST { fallen.push(line) } else { held.push(line) }
    }
    (held, fallen)
}

fn rows(values: &[Value]) -> Vec<Row<'_>> {
    let row = |value| {
        let value: &Value = value;
        Some(Row {
            case: value["case"].as_str()?,
            program: value["program"].as_str()?,
            mb_per_s: value["mb_per_s"].as_f64(),
        })
    };
    values.iter().filter_map(row).collect()
}

fn find<'a, 'b>(rows: &'a [Row<'b>], like: &Row<'_>) -> Option<&'a Row<'b>> {
    rows.iter().find(|row| row.case == like.case && row.program == like.program)
}

fn scale(earlier: &[Row<'_>], now: &[Row<'_>], case: &str) -> f64 {
    let peers = earlier.iter().filter(|row| row.case == case && is_peer(row.program));
    let ratios: Vec<f64> = peers.filter_map(|old| Some(find(now, old)?.mb_per_s? / old.mb_per_s?)).collect();
    if ratios.len() < PEERS_TO_SCALE { 1.0 } else { median(ratios) }
}

fn is_peer(program: &str) -> bool {
    !program.starts_with("longhaul") && !program.starts_with("floor")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table(rates: &[(&str, f64)]) -> Vec<Value> {
        let row =
            |(program, rate): &(&str, f64)| json!({"case": "lan-2g", "program": program, "mb_per_s": rate});
        rates.iter().map(row).collect()
    }

    #[test]
    fn a_slower_machine_is_no_regression_and_a_slower_program_is() {
        let earlier = table(&[("longhaul", 1000.0), ("a", 100.0), ("b", 200.0), ("c", 300.0)]);
        let slow_machine = table(&[("longhaul", 480.0), ("a", 50.0), ("b", 100.0), ("c", 150.0)]);
        let (held, fallen) = compare(&earlier, &slow_machine);
        assert_eq!((held.len(), fallen.len()), (1, 0), "{fallen:?}");
        let slow_program = table(&[("longhaul", 880.0), ("a", 100.0), ("b", 200.0), ("c", 300.0)]);
        let (held, fallen) = compare(&earlier, &slow_program);
        assert_eq!((held.len(), fallen.len()), (0, 1), "{held:?}");
        assert!(fallen[0].contains("0.88 of 1000"), "{fallen:?}");
    }

    #[test]
    fn few_peers_scale_nothing_and_a_failure_has_fallen() {
        let earlier = table(&[("longhaul", 1000.0), ("a", 100.0)]);
        let (_, fallen) = compare(&earlier, &table(&[("longhaul", 500.0), ("a", 50.0)]));
        assert_eq!(fallen.len(), 1);
        let failed = [json!({"case": "lan-2g", "program": "longhaul", "mb_per_s": null})];
        assert_eq!(compare(&earlier, &failed).1, ["lan-2g longhaul: 1000 MB/s then, failed now"]);
        assert_eq!(compare(&earlier, &[]), (Vec::new(), Vec::new()), "what was not run is not judged");
    }

    #[test]
    fn both_forms_of_files_are_read() {
        let row = r#"{"case":"lan-2g","program":"longhaul","mb_per_s":1}"#;
        assert_eq!(parse(&format!("{row}\n{row}\n")).unwrap().len(), 2);
        assert_eq!(parse(&format!("[{row},{row}]")).unwrap().len(), 2);
        assert!(parse("{").is_err() && parse("{}").is_err());
    }
}
