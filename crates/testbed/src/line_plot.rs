//! Lines over time, as a file that any browser shows: the plots of the experiments.

use std::fmt::Write as _;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 80.0;
/// Width of an entry of the legend.
const LEGEND_WIDTH: f64 = 110.0;

/// A plot of several lines over the same time.
pub(crate) struct LinePlot {
    pub(crate) title: String,
    /// Time at the right end of the axis.
    pub(crate) seconds: f64,
    /// Value at the upper end of the axis; greater ones are drawn there.
    pub(crate) most: f64,
    /// Values that are marked: each with its colour and what stands beside it.
    pub(crate) levels: Vec<(f64, &'static str, String)>,
    pub(crate) lines: Vec<Line>,
}

/// One line.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) colour: &'static str,
    /// Seconds and values.
    pub(crate) points: Vec<(f64, f64)>,
}

impl LinePlot {
    /// The plot in SVG. Names are not escaped: they are ours.
    pub(crate) fn svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
             <text x=\"{MARGIN}\" y=\"24\" font-size=\"14\">{}</text>\n",
            self.title
        );
        let (right, bottom) = (WIDTH - MARGIN, HEIGHT - MARGIN);
        for (value, colour, name) in &self.levels {
            let at = self.y(*value);
            let _ = writeln!(
                svg,
                "<line x1=\"{MARGIN}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"{colour}\"/>\n\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
                MARGIN - 6.0,
                at + 4.0
            );
        }
        for (number, line) in self.lines.iter().enumerate() {
            let point =
                |(seconds, value): &(f64, f64)| format!("{:.1},{:.1}", self.x(*seconds), self.y(*value));
            let points: Vec<String> = line.points.iter().map(point).collect();
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{0}\" stroke-width=\"1.5\" points=\"{1}\"/>\n\
                 <text x=\"{2}\" y=\"{3}\" fill=\"{0}\">{4}</text>",
                line.colour,
                points.join(" "),
                MARGIN + LEGEND_WIDTH * number as f64,
                MARGIN - 24.0,
                line.name
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{:.0} s</text>\n</svg>",
            bottom + 18.0,
            self.seconds
        );
        svg
    }

    fn x(&self, seconds: f64) -> f64 {
        MARGIN + seconds / self.seconds.max(1e-3) * (WIDTH - 2.0 * MARGIN)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - MARGIN - value.min(self.most) / self.most.max(1e-9) * (HEIGHT - 2.0 * MARGIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_between_the_margins() {
        let line = Line { name: "a".to_owned(), colour: "#06c", points: vec![(0.0, 0.0), (10.0, 99.0)] };
        let levels = vec![(5.0, "#c33", "half".to_owned())];
        let plot = LinePlot { title: "t".to_owned(), seconds: 10.0, most: 10.0, levels, lines: vec![line] };
        let svg = plot.svg();
        assert!(svg.contains("points=\"80.0,280.0 820.0,80.0\""), "{svg}");
        assert!(svg.contains("y1=\"180.0\"") && svg.contains(">half<") && svg.contains(">10 s<"), "{svg}");
    }
}
