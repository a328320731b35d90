#!/usr/bin/env python3
"""Reads the page of a run in headless Chromium, breaks the run, and reads again (test/daemon/watch/test_page.sh).

    page.py URL PID VICTIM FOLDER

PID is the supervisor, VICTIM the role of the worker to kill. The run is over at the end. FOLDER is an empty one, for
Chromium. Prints failures and a summary as test/shell.bash does. PAGE_SHOTS=FOLDER has it leave a picture of each layout
there."""
import json
import os
import signal
import sys
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

LIMIT_S = 90
WIDTH, HEIGHT = 360, 740
checks = failures = 0

# Everything that shows text, with the box of each line of it. Text of SVG must lie within its svg, text of HTML within the
# viewport, and no block may scroll sideways. Colours: of the text, and of the nearest ancestor that has a background.
SHOWN = """
const shown = [];
function background(element) {
  for (let at = element; at; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor;
    if (color !== "rgba(0, 0, 0, 0)") return color;
  }
  return "rgb(255, 255, 255)";
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, element = node.parentElement;
  if (node.data.trim() === "" || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  const svg = element.closest("svg"), style = getComputedStyle(element), before = getComputedStyle(element, "::before");
  const boxes = svg ? [element.getBoundingClientRect()] : [...range.getClientRects()];
  if (boxes.length === 0 || style.visibility !== "visible") continue;
  const bounds = svg ? svg.getBoundingClientRect() : null;
  const colors = [svg ? style.fill : style.color];
  if (before.content !== "none") colors.push(before.color);
  shown.push({text: node.data.trim().slice(0, 60), name: element.tagName, colors, background: background(element),
    boxes: boxes.map(b => [b.left, b.right, b.top, b.bottom]),
    bounds: bounds && [bounds.left, bounds.right, bounds.top, bounds.bottom],
    wide: style.display === "inline" || svg ? 0 : element.scrollWidth - element.clientWidth});
}
return shown;
"""

# What the policy must stop: each sets a mark on the window if it runs, and is told as a violation.
FORBIDDEN = """
window.broken = [];
window.violations = [];
window.broke = name => window.broken.push(name);
document.addEventListener("securitypolicyviolation", event => window.violations.push(event.effectiveDirective));
const button = document.createElement("button");
button.setAttribute("onclick", "broke('handler')");
document.body.append(button);
button.click();
const script = document.createElement("script");
script.textContent = "broke('script')";
document.body.append(script);
setTimeout("broke('eval')", 0);
const style = document.createElement("style");
style.textContent = "body { display: none }";
document.body.append(style);
fetch("http://127.0.0.2:9/").then(() => broke("fetch"), () => {});
const image = new Image();
image.src = "http://127.0.0.2:9/image.png";
const frame = document.createElement("iframe");
frame.src = "/";
document.body.append(frame);
"""


def check(name, function, *arguments):
    """A failure is an exception, or what the function returns: sentences."""
    global checks, failures
    checks += 1
    try:
        problems = function(*arguments) or []
    except Exception as problem:  # the other checks are run all the same
        problems = [f"{type(problem).__name__}: {problem}"]
    if problems:
        failures += 1
        print(f"page.py:F: {name}", *problems[:20], sep="\n", flush=True)


def wait_until(what, function):
    end = time.monotonic() + LIMIT_S
    while not (value := function()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {LIMIT_S} s")
        time.sleep(0.1)
    return value


def start_browser(folder):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", f"user-data-dir={folder}"):
        options.add_argument("--" + argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


class Page:
    def __init__(self, browser, url):
        self.browser, self.url = browser, url
        self.events = []
        browser.get(url)

    def script(self, text, *arguments):
        return self.browser.execute_script(text, *arguments)

    def text(self, selector):
        return self.script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def count(self, selector):
        return self.script("return document.querySelectorAll(arguments[0]).length", selector)

    def points(self):
        """The number of points of the curve."""
        return len(self.script("return document.querySelector('polyline.curve')?.getAttribute('points') ?? ''").split())

    def rows(self):
        """[{"Worker": ..., "Process": ...}, ...]"""
        return self.script(
            "return [...document.querySelectorAll('#workers tr')].map(row => Object.fromEntries([...row.cells].map("
            "cell => [cell.dataset.name, cell.textContent])))")

    def network(self):
        """Events of the network so far."""
        self.events += [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        return self.events

    def use(self, width, scheme):
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": HEIGHT, "deviceScaleFactor": 2, "mobile": width == WIDTH})
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                     {"features": [{"name": "prefers-color-scheme", "value": scheme}]})


# ---- what the page shows ----
def grows(page):
    before = wait_until("a curve", page.points)
    wait_until(f"more than {before} points", lambda: page.points() > before)


def figures_change(page):
    before = wait_until("figures", lambda: page.text("#figures"))
    wait_until("other figures", lambda: page.text("#figures") != before)


def sections_are_there(page):
    missing = [selector for selector in ("#workers tr", "#histograms rect.bar", "#figures dd", "#curve text")
               if page.count(selector) == 0]
    missing += [selector for selector in ("#log", "#job", "#name", "#where") if page.text(selector) == ""]
    if page.text("#state") != "training":
        missing.append(f"the state is {page.text('#state')}")
    return missing


def job_is_whole(page):
    job = json.loads(page.text("#job"))
    return [] if job["metrics"]["listen"] in page.url else [f"the job says {job['metrics']}"]


def kill_worker(page, role):
    row = wait_until(f"a {role} with a process",
                     lambda: next((row for row in page.rows() if row["Worker"].startswith(role) and row["Process"]), None))
    os.kill(int(row["Process"]), signal.SIGKILL)

    def is_another():
        now = next(other for other in page.rows() if other["Worker"] == row["Worker"])
        return now["Process"] not in ("", row["Process"]) and now["Restarts"] == "1" and now["State"] == "running"

    wait_until(f"{row['Worker']} as another process with one restart", is_another)


def mark_is_drawn(page, role):
    wait_until("a mark", lambda: page.count("#curve line.mark"))
    lines = wait_until("its line", lambda: page.text("#marks"))
    x = float(page.script("return document.querySelector('#curve line.mark').getAttribute('x1')"))
    width = float(page.script("return document.querySelector('#curve').viewBox.baseVal.width"))
    problems = [] if role in lines else [f"the marks' lines are: {lines}"]
    return problems + ([] if 0 <= x <= width else [f"the mark is at {x} of {width}"])


# ---- the browser's judgement ----
def console_is_quiet(page):
    return [str(entry) for entry in page.browser.get_log("browser") if entry["level"] not in ("DEBUG", "INFO")]


def asks_nobody_else(page):
    requests = [event["params"] for event in page.network() if event["method"] == "Network.requestWillBeSent"]
    urls = [request["request"]["url"] for request in requests if request["documentURL"] == page.url]  # else Chromium's own
    if not any(url == page.url + "events" for url in urls):
        return [f"no request for events: {urls}"]
    return [url for url in urls if not url.startswith((page.url, "data:"))]


def policy_is_strict(page):
    policies = [{key.lower(): value for key, value in event["params"]["response"]["headers"].items()}
                .get("content-security-policy", "") for event in page.network()
                if event["method"] == "Network.responseReceived" and event["params"]["response"]["url"] == page.url]
    if not policies or any("unsafe" in policy or "default-src 'none'" not in policy for policy in policies):
        return [f"the policies are {policies}"]
    return []


def policy_is_kept(page):
    page.script(FORBIDDEN)
    wanted = {"script-src-attr", "script-src-elem", "script-src", "style-src-elem", "connect-src", "img-src", "frame-src"}
    wait_until("all violations", lambda: wanted <= set(page.script("return window.violations")))
    return page.script("return window.broken")


# ---- the layout ----
def is_outside(box, bounds):
    left, right, top, bottom = box
    return left < bounds[0] - 0.5 or right > bounds[1] + 0.5 or top < bounds[2] - 0.5 or bottom > bounds[3] + 0.5


def nothing_is_cut_off(page, width):
    problems = []
    scrolled = page.script("return document.documentElement.scrollWidth")
    if scrolled > width or (width == WIDTH and scrolled != width):  # a wide screen's has a scroll bar
        problems.append(f"the document is {scrolled} wide, expected {width}")
    for shown in page.script(SHOWN):
        bounds = shown["bounds"] or [0, width, float("-inf"), float("inf")]
        outside = [box for box in shown["boxes"] if is_outside(box, bounds)]
        if outside or shown["wide"] > 0 or is_outside([bounds[0], bounds[1], 0, 0], [0, width, 0, 0]):
            problems.append(f"{shown['name']} \"{shown['text']}\": {outside} is outside {bounds}, wider by {shown['wide']}")
    return problems


def luminance(color):
    """Of WCAG 2: https://www.w3.org/TR/WCAG22/#dfn-relative-luminance"""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
              for c in (int(part) / 255 for part in color[color.index("(") + 1:-1].split(",")[:3])]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def text_is_legible(page):
    problems = set()
    for shown in page.script(SHOWN):
        for color in shown["colors"]:
            light, dark = sorted((luminance(color), luminance(shown["background"])), reverse=True)
            ratio = (light + 0.05) / (dark + 0.05)
            if ratio < 4.5 or color.startswith("rgba") or shown["background"].startswith("rgba"):
                problems.add(f"{shown['name']} \"{shown['text']}\": {ratio:.2f}, {color} on {shown['background']}")
    return sorted(problems)


def check_layout(page, when):
    page.script("document.querySelector('details').open = true")
    grounds = set()
    for width in (WIDTH, 1280):
        for scheme in ("light", "dark"):
            page.use(width, scheme)
            wait_until("the curve in this width", lambda: page.script(
                "return !document.querySelector('polyline.curve') || Math.abs(document.querySelector('#curve').viewBox"
                ".baseVal.width - document.querySelector('#curve').clientWidth) < 1") or "ended" in page.text("#state"))
            check(f"{when}: nothing is cut off at {width}, {scheme}", nothing_is_cut_off, page, width)
            if os.environ.get("PAGE_SHOTS"):
                page.browser.save_screenshot(f"{os.environ['PAGE_SHOTS']}/{when.replace(' ', '-')}-{width}-{scheme}-{os.getpid()}.png")
            check(f"{when}: text is legible at {width}, {scheme}", text_is_legible, page)
            grounds.add(page.script("return getComputedStyle(document.body).backgroundColor"))
    check(f"{when}: light and dark differ", lambda: [] if len(grounds) == 2 else [str(grounds)])


# The page's own functions draw what a run seldom has; no event of the server comes between.
STRANGE = """
const [points, mark] = arguments;
run.points = points;
showCurve({progress: {}}, mark ? [[points[0][0], mark]] : []);
"""


def strange_curves(page):
    problems = []
    page.use(WIDTH, "light")
    for value in (0, 1e-12, -1e-5, -0.00123456, -0.0123456, 0.123456, -12.3456, 499.987, -1234.56, 99999.9, -123456.7, 1e9, -1e300):
        page.script(STRANGE, [[1, value], [2, value * 1.01], [3000000, value * 1.02]], "x" * 150)
        problems += [f"a curve at {value}: {problem}" for problem in nothing_is_cut_off(page, WIDTH)]
    page.script(STRANGE, [], None)
    return problems + [f"no curve: {problem}" for problem in nothing_is_cut_off(page, WIDTH)]


def says_it_has_ended(page, supervisor):
    os.kill(supervisor, signal.SIGTERM)
    wait_until("a page that says so", lambda: "has ended" in page.text("#state"))


def main():
    url, supervisor, victim, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    browser = start_browser(folder)
    try:
        page = Page(browser, url)
        check("the curve grows", grows, page)
        check("the figures change", figures_change, page)
        check("every section has something", sections_are_there, page)
        check("the job is shown", job_is_whole, page)
        check(f"a killed {victim}'s row changes", kill_worker, page, victim)
        check("and the curve has a mark", mark_is_drawn, page, victim)
        check("and goes on", grows, page)
        check_layout(page, "while it runs")
        check("no message on the console", console_is_quiet, page)
        check("no request to another host", asks_nobody_else, page)
        check("the policy is strict", policy_is_strict, page)
        check("the policy is kept", policy_is_kept, page)
        browser.get(url)
        check("a page that is opened again has the curve", grows, page)
        check("the end is told", says_it_has_ended, page, supervisor)
        check_layout(page, "after the end")
        check("strange curves are not cut off", strange_curves, page)
    finally:
        browser.quit()
    print(f"{(checks - failures) * 100 // checks}%: Checks: {checks}, Failures: {failures}, Errors: 0")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
