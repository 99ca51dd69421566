//! Pictures of the pages while the limit binds, at the widths of a desk and of a phone.

use std::path::Path;

use longhaul_testbed::browser::{self, Browser};
use longhaul_testbed::http::Api;

use super::CASE;
use super::demo::Demo;
use crate::RESULTS_DIRECTORY;
use crate::measure::Row;

const SCREENS: [(u32, u32); 2] = [(1280, 900), (400, 800)];
const PAGE_WIDTH: &str = "document.documentElement.scrollWidth";

/// Takes them where there is a browser. Which links carry data is on the overview.
pub(super) fn take(demo: &Demo, api: &Api, subscription: &str) -> Option<Row> {
    let Some(program) = browser::find() else {
        eprintln!("  no pictures: there is no Chromium; install it, or set LONGHAUL_CHROMIUM");
        return None;
    };
    let pages = [
        ("subscription", format!("/ui/subscriptions/{subscription}")),
        ("problems", "/ui/problems".to_owned()),
        ("network", "/ui/".to_owned()),
    ];
    let (base, folder) = (demo.pages_url(), Path::new(RESULTS_DIRECTORY).join(CASE));
    let mut browser = Browser::start(&program);
    let mut faults = 0u32;
    for (width, height) in SCREENS {
        let mut page = browser.page(width, height);
        page.log_in(api, &base);
        for (name, path) in &pages {
            page.open(&format!("{base}{path}"));
            let complaints = page.complaints();
            let needed = page.value(PAGE_WIDTH).as_u64().unwrap_or(u64::MAX);
            if needed > u64::from(width) || !complaints.is_empty() {
                eprintln!("  {name} at {width} is {needed} wide and complains of {complaints:?}");
                faults += 1;
            }
            let picture = folder.join(format!("{name}-{width}.png"));
            page.screenshot(&picture);
            eprintln!("  {}", picture.display());
        }
    }
    let figure = "pages that complain or are wider than their screen";
    Some(Row {
        yardstick: format!("{} pages", pages.len() * SCREENS.len()),
        ..Row::at_most(CASE, figure, f64::from(faults), 0.0, "0")
    })
}
