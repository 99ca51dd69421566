//! The paper's plot: what both paths carried each second, and the moving average.

use std::fmt::Write as _;

use super::Outcome;
use super::record::Sample;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 380.0;
/// Left, top, right, bottom.
const MARGINS: [f64; 4] = [60.0, 50.0, 20.0, 50.0];
const STEP_S: f64 = 1.0;
/// The paper averages over one of 20 hours.
const AVERAGED_PART: f64 = 1.0 / 20.0;

struct Axes {
    seconds: f64,
    mbit: f64,
}

impl Axes {
    fn x(&self, seconds: f64) -> f64 {
        MARGINS[0] + seconds / self.seconds * (WIDTH - MARGINS[0] - MARGINS[2])
    }

    fn y(&self, mbit: f64) -> f64 {
        HEIGHT - MARGINS[3] - mbit / self.mbit * (HEIGHT - MARGINS[1] - MARGINS[3])
    }

    fn line(&self, points: impl Iterator<Item = (f64, f64)>, style: &str) -> String {
        let points: Vec<String> =
            points.map(|(at, mbit)| format!("{:.1},{:.1}", self.x(at), self.y(mbit))).collect();
        format!("<polyline fill=\"none\" {style} points=\"{}\"/>\n", points.join(" "))
    }
}

impl Outcome {
    /// As a file that any browser shows.
    pub fn svg(&self) -> String {
        let end = self.done_s.max(STEP_S).ceil();
        let steps = || (1..=end as usize).map(|step| step as f64 * STEP_S);
        let each = |count: fn(&Sample) -> u64| {
            steps().map(move |at| (at - STEP_S / 2.0, self.record.rate(at - STEP_S, at, count)))
        };
        let window = (end * AVERAGED_PART).max(STEP_S);
        let average = steps().map(|at| (at, self.record.rate((at - window).max(0.0), at, Sample::ours)));
        let average: Vec<_> = average.collect();
        // While streams move, both paths bring something.
        let most = average.iter().fold(self.experiment.rate_mbit, |most, (_, mbit)| most.max(*mbit));
        let axes = Axes { seconds: end, mbit: most * 1.1 };
        let mut svg = frame(
            &axes,
            self.experiment.rate_mbit,
            &format!("{} jobs of {} files", self.jobs, self.experiment.files_per_job),
        );
        let thin = "stroke-width=\"1.5\"";
        svg.push_str(&axes.line(
            each(|sample| sample.background),
            &format!("stroke=\"#999\" stroke-dasharray=\"4 3\" {thin}"),
        ));
        svg.push_str(&axes.line(each(|sample| sample.shared), &format!("stroke=\"#c60\" {thin}")));
        svg.push_str(&axes.line(each(|sample| sample.circuit), &format!("stroke=\"#06c\" {thin}")));
        svg.push_str(
            &axes.line(average.into_iter(), "stroke=\"#000\" stroke-width=\"2.5\" stroke-opacity=\"0.5\""),
        );
        for (at, words) in [(self.queued_s, "long queue"), (self.used_s, "circuit")] {
            let x = axes.x(at);
            let (top, bottom) = (MARGINS[1], HEIGHT - MARGINS[3]);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#444\" \
                    stroke-dasharray=\"2 4\"/>"
            );
            let anchor = if words == "circuit" { "start" } else { "end" };
            let shift = if words == "circuit" { 4.0 } else { -4.0 };
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{words}</text>",
                x + shift,
                bottom - 6.0
            );
        }
        let legend = [
            ("#c60", "ours, shared path"),
            ("#06c", "ours, circuit"),
            ("#999", "others, shared path"),
            ("#777", "ours, moving average"),
        ];
        for (place, (colour, words)) in legend.iter().enumerate() {
            let x = MARGINS[0] + 10.0 + place as f64 * 190.0;
            let y = MARGINS[1] - 12.0;
            let _ = writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{colour}\" stroke-width=\"3\"/>",
                y - 4.0,
                x + 20.0,
                y - 4.0
            );
            let _ = writeln!(svg, "<text x=\"{}\" y=\"{y}\">{words}</text>", x + 26.0);
        }
        svg + "</svg>\n"
    }
}

fn frame(axes: &Axes, rate: f64, title: &str) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
            font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{}\" y=\"20\" font-size=\"14\">{title}: Mbit/s of IP packets each second</text>\n",
        MARGINS[0]
    );
    for quarter in 0..=4 {
        let mbit = rate * f64::from(quarter) / 4.0;
        let (y, left, right) = (axes.y(mbit), MARGINS[0], WIDTH - MARGINS[2]);
        let _ =
            writeln!(svg, "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>");
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mbit:.0}</text>",
            left - 6.0,
            y + 4.0
        );
    }
    let every = if axes.seconds > 40.0 { 10.0 } else { 5.0 };
    let mut at = 0.0;
    while at <= axes.seconds {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{at:.0} s</text>",
            axes.x(at),
            HEIGHT - MARGINS[3] + 18.0
        );
        at += every;
    }
    svg
}
