#!/usr/bin/env python3
"""Reads a page in headless Chromium (test/daemon/watch/test_page.sh).

    page.py FOLDER run URL PID VICTIM     the page of a run, which it breaks; the run is over at the end
    page.py FOLDER runs URL PID           the page of many runs: see runs_are_there for which

FOLDER is an empty one, for Chromium. PID is the supervisor, or the process that serves many runs; VICTIM the role of the
worker to kill. A URL with a token has orders. Prints failures and a summary as test/shell.bash does. PAGE_SHOTS=FOLDER
has it leave a picture of each layout there."""
import json
import os
import re
import signal
import sys
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

LIMIT_S = 90
SIZES = [(400, 800), (1280, 900)]
WIDTH = SIZES[0][0]
checks = failures = 0

# Everything that shows text, with the box of each line of it. It must lie within the viewport,
# and no block may scroll sideways that is not meant to. Colours: of the text, and of the nearest ancestor that has a background.
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
  if (node.data.trim() === "" || ["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"].includes(element.tagName)) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  const style = getComputedStyle(element), before = getComputedStyle(element, "::before"), boxes = [...range.getClientRects()];
  if (boxes.length === 0 || style.visibility !== "visible" || element.closest(".scrolls, ul")) continue;
  const colors = [style.color];
  if (before.content !== "none") colors.push(before.color);
  shown.push({text: node.data.trim().slice(0, 60), name: element.tagName, colors, background: background(element),
    boxes: boxes.map(b => [b.left, b.right, b.top, b.bottom]),
    wide: style.display === "inline" || element.closest(".plot") ? 0 : element.scrollWidth - element.clientWidth});
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


def without_password(url):
    return re.sub("//[^/@]*@", "//", url)


class Page:
    def __init__(self, browser, url):
        self.browser, self.url = browser, url
        self.base = without_password(url)
        self.events = []
        browser.get(url)

    def script(self, text, *arguments):
        return self.browser.execute_script(text, *arguments)

    def text(self, selector):
        return self.script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def count(self, selector):
        return self.script("return document.querySelectorAll(arguments[0]).length", selector)

    def table(self, selector="#board details.table"):
        """The rows of the table of values, each a list of texts. The first is the head."""
        if self.count(selector) == 0:  # nothing has come yet
            return []
        self.script("document.querySelector(arguments[0]).open = true", selector)
        return self.script("return [...document.querySelectorAll(arguments[0] + ' tr')].map(row => [...row.cells].map(cell => "
                           "cell.textContent))", selector)

    def newest(self):
        """The newest x of the curves; 0: there is none."""
        rows = self.table()
        return int(rows[-1][0]) if len(rows) > 1 else 0

    def element(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def choose(self, name, wanted=True):
        """Shows the panel of a number, or not."""
        self.script("document.querySelector('details.chooser').open = true")
        box = self.element(f"#board .names input[value='{name}']")
        if box.is_selected() != wanted:
            box.click()
        self.script("document.querySelector('details.chooser').open = false")

    def labels(self):
        """The labels of the first panel's x axis."""
        return self.script("return [...document.querySelector('.plot').querySelectorAll('.dygraph-axis-label-x')].map(label => "
                           "label.textContent)")

    def rows(self):
        """[{"Worker": ..., "Process": ...}, ...]"""
        return self.script(
            "return [...document.querySelectorAll('#workers tr')].map(row => Object.fromEntries([...row.cells].map("
            "cell => [cell.dataset.name, cell.textContent])))")

    def network(self):
        """Events of the network so far."""
        self.events += [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        return self.events

    def use(self, size, scheme):
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] == WIDTH})
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                     {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.browser.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))")


# ---- what the page of a run shows ----
def grows(page):
    before = wait_until("a curve", page.newest)
    wait_until(f"a curve beyond {before}", lambda: page.newest() > before)


def figures_change(page):
    before = wait_until("figures", lambda: page.text("#figures"))
    wait_until("other figures", lambda: page.text("#figures") != before)


def sections_are_there(page):
    missing = [selector for selector in ("#workers tr", "#histograms progress", "#figures dd", "#board canvas", "#progress progress", "#events li")
               if page.count(selector) == 0]
    missing += [selector for selector in ("#log", "#job", "#name", "#where") if page.text(selector) == ""]
    if page.text("#state") != "training":
        missing.append(f"the state is {page.text('#state')}")
    return missing


def job_is_whole(page):
    job = json.loads(page.text("#job"))
    return [] if job["metrics"]["listen"] in page.base else [f"the job says {job['metrics']}"]


def kill_worker(page, role):
    row = wait_until(f"a {role} with a process",
                     lambda: next((row for row in page.rows() if row["Worker"].startswith(role) and row["Process"]), None))
    os.kill(int(row["Process"]), signal.SIGKILL)

    def is_another():
        now = next(other for other in page.rows() if other["Worker"] == row["Worker"])
        return now["Process"] not in ("", row["Process"]) and now["Restarts"] == "1" and now["State"] == "running"

    wait_until(f"{row['Worker']} as another process with one restart", is_another)


def mark_is_told(page, role):
    wait_until("an event", lambda: "killed by signal 9" in page.text("#events") and role in page.text("#events"))


def pointer_shows_the_mark(page, role):
    """Moves the pointer over the plot until the values under it name the event."""
    page.use(SIZES[1], "light")
    page.element("#board .buttons button:last-child").click()
    plot = page.element(".plot")
    for _ in range(10):  # the curve grows meanwhile
        for x in range(-plot.size["width"] // 2 + 60, plot.size["width"] // 2 - 4, 4):
            ActionChains(page.browser, duration=0).move_to_element_with_offset(plot, x, 0).perform()
            if role in page.text(".values"):
                return []
    return [f"the values are: {page.text('.values')}"]


def first_screen_has_all(page):
    """State, progress, curve and workers."""
    page.use(SIZES[1], "light")
    page.script("document.querySelector('#board details.table').open = false; scrollTo(0, 0)")
    bottoms = page.script("return ['#state', '#progress', '.plot', '#workers tr'].map(selector => "
                          "document.querySelector(selector).getBoundingClientRect().bottom)")
    return [] if max(bottoms) <= SIZES[1][1] else [f"the lower ends are at {bottoms}"]


def names_can_be_chosen(page, names):
    problems = []
    for name in names:
        page.choose(name)
        if not wait_until(f"a panel of {name}", lambda: name in page.script(
                "return [...document.querySelectorAll('.panel h3')].map(title => title.textContent)")):
            problems.append(name)
    head = page.table()[0]
    problems += [f"the table's head is {head}" for name in names if name not in head]
    page.browser.refresh()
    wait_until("the same panels after loading again", lambda: page.count(".panel canvas") >= 2 * len(names))
    for name in names[1:]:
        page.choose(name, False)
    if page.count(".panel") != 1:
        problems.append(f"{page.count('.panel')} panels are left")
    return problems


def axes_can_be_chosen(page):
    problems, axis = [], Select(page.element("#board select"))
    for name, head in (("time", "time since the start"), ("steps", "steps"), ("number", "episode or update")):
        axis.select_by_value(name)
        rows = wait_until("a table", page.table)
        if rows[0][0] != head or len(rows) < 2:
            problems.append(f"the axis {name}: {rows[:2]}")
    box = page.element("#board .tools > label input[type=checkbox]")
    box.click()
    if "log=1" not in page.browser.current_url or page.count(".panel canvas") == 0:
        problems.append(f"the logarithmic axis: {page.browser.current_url}")
    box.click()
    return problems


def drag_zooms(page):
    page.use(SIZES[1], "light")
    plot, before = page.element(".plot"), wait_until("labels", page.labels)
    width = plot.size["width"]
    ActionChains(page.browser).move_to_element_with_offset(plot, -width // 4, 0).click_and_hold().move_by_offset(width // 8, 0).release().perform()
    wait_until("other labels", lambda: page.labels() and page.labels()[-1] != before[-1])
    near = page.labels()
    page.element("#board .buttons button[title='to the right']").click()
    wait_until("labels further to the right", lambda: page.labels() != near)
    page.element("#board .buttons button:last-child").click()
    wait_until("all again", lambda: len(page.labels()) > 0 and page.labels() != near)


def histogram_is_exact(page):
    wanted = "2 rows100 %"
    return [] if wanted in page.text("#histograms") else [f"expected {wanted} in {page.text('#histograms')}"]


# ---- the browser's judgement ----
def console_is_quiet(page):
    return [str(entry) for entry in page.browser.get_log("browser") if entry["level"] not in ("DEBUG", "INFO")]


def asks_nobody_else(page):
    requests = [event["params"] for event in page.network() if event["method"] == "Network.requestWillBeSent"]
    urls = [without_password(request["request"]["url"]) for request in requests
            if without_password(request["documentURL"]).startswith(page.base)]  # else Chromium's own
    if not any(url in (page.base + "events", page.base + "runs.json") for url in urls):
        return [f"no request for events or runs: {urls}"]
    return [url for url in urls if not url.startswith((page.base, "data:"))]


def policy_is_strict(page):
    policies = [{key.lower(): value for key, value in event["params"]["response"]["headers"].items()}
                .get("content-security-policy", "") for event in page.network()
                if event["method"] == "Network.responseReceived" and without_password(event["params"]["response"]["url"]).split("#")[0] == page.base]
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
        outside = [box for box in shown["boxes"] if is_outside(box, [0, width, float("-inf"), float("inf")])]
        if outside or shown["wide"] > 0:
            problems.append(f"{shown['name']} \"{shown['text']}\": {outside} is outside, wider by {shown['wide']}")
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
    page.script("for (const part of document.querySelectorAll('details:not(.chooser)')) part.open = true")
    grounds = set()
    for size in SIZES:
        for scheme in ("light", "dark"):
            page.use(size, scheme)
            wait_until("the curve in this width", lambda: page.script(
                "const plot = document.querySelector('.plot'), canvas = plot.querySelector('canvas');"
                "return !canvas || Math.abs(canvas.clientWidth - plot.clientWidth) < 2"))
            check(f"{when}: nothing is cut off at {size}, {scheme}", nothing_is_cut_off, page, size[0])
            if os.environ.get("PAGE_SHOTS"):
                page.script("scrollTo(0, 0)")
                page.browser.save_screenshot(f"{os.environ['PAGE_SHOTS']}/{when.replace(' ', '-')}-{size[0]}-{scheme}-{os.getpid()}.png")
            check(f"{when}: text is legible at {size}, {scheme}", text_is_legible, page)
            grounds.add(page.script("return getComputedStyle(document.body).backgroundColor"))
    check(f"{when}: light and dark differ", lambda: [] if len(grounds) == 2 else [str(grounds)])


def check_browser(page):
    check("no message on the console", console_is_quiet, page)
    check("no request to another host", asks_nobody_else, page)
    check("the policy is strict", policy_is_strict, page)
    check("the policy is kept", policy_is_kept, page)
    page.browser.get(page.url)


# ---- the end of a run, and orders ----
def answer_question(page, selector, accepts):
    page.element(selector).click()
    alert = wait_until("a question", lambda: page.browser.switch_to.alert)
    (alert.accept if accepts else alert.dismiss)()


def stops_by_its_button(page):
    answer_question(page, "#checkpoint", True)
    wait_until("the order among the events", lambda: "an order by the page: take a checkpoint" in page.text("#events"))
    answer_question(page, "#stop", False)
    grows(page)
    answer_question(page, "#stop", True)


def end_stays(page):
    wait_until("a page that says so", lambda: page.text("#state") == "stopped")
    words, x = page.text("#end"), page.newest()
    problems = [] if "was stopped" in words and "episodes" in words else [f"the end is: {words}"]
    problems += [] if x > 0 and page.count(".plot canvas") else [f"the curve ends at {x}"]
    return problems + ([] if page.element("#end").is_displayed() and not page.element("#orders").is_displayed() else ["orders stay"])


def death_is_no_end(page, supervisor):
    os.kill(supervisor, signal.SIGKILL)
    wait_until("a page that says so", lambda: "no answer" in page.text("#state"))
    return [] if page.newest() > 0 and not page.element("#end").is_displayed() else [f"the end is: {page.text('#end')}"]


def read_run(browser, url, supervisor, victim):
    page = Page(browser, url)
    has_orders = "@" in url
    check("the curve grows", grows, page)
    check("the figures change", figures_change, page)
    check("every section has something", sections_are_there, page)
    check("the job is shown", job_is_whole, page)
    check("the first screen has all", first_screen_has_all, page)
    check(f"a killed {victim}'s row changes", kill_worker, page, victim)
    check("and it is an event", mark_is_told, page, victim)
    check("the pointer finds its mark", pointer_shows_the_mark, page, victim)
    check("and goes on", grows, page)
    names = ["running_reward", "loss", "timing.cores"] if victim == "observer" else ["loss", "timing.samples_per_s", "timing.resident_bytes"]
    check("numbers can be chosen", names_can_be_chosen, page, names)
    check("axes can be chosen", axes_can_be_chosen, page)
    check("a drag zooms", drag_zooms, page)
    if victim == "observer":
        check("a histogram is exact", histogram_is_exact, page)
    check_layout(page, "while it runs")
    check_browser(page)
    check("a page that is opened again has the curve", grows, page)
    if has_orders:
        check("buttons give orders, when asked twice", stops_by_its_button, page)
        check("the end stays", end_stays, page)
    else:
        check("no token, no buttons", lambda: ["#orders"] if page.element("#orders").is_displayed() else [])
        check("a death is no end", death_is_no_end, page, supervisor)
    check_layout(page, "after the end")


# ---- the page of many runs ----
def row(page, label):
    return page.script("const row = [...document.querySelectorAll('#runs tr')].find(row => row.dataset.run === arguments[0]);"
                       "return row && Object.fromEntries([...row.cells].map(cell => [cell.dataset.name, cell.textContent]))", label)


def runs_are_there(page):
    """night/lr=A,seed=B for two rates and two seeds; died and running, of another job."""
    wait_until("six runs", lambda: page.count("#runs tr") == 6)
    problems = [f"{label}: {row(page, label)}" for label in ("lr=0.001,seed=1", "lr=0.001,seed=2", "lr=0.01,seed=1", "lr=0.01,seed=2")
                if (row(page, label) or {}).get("State") != "finished"]
    died, running = row(page, "died"), row(page, "running")
    problems += [] if died["State"] == "died" and "killed" in died["Why"] else [str(died)]
    problems += [] if running["State"] == "running" and "done in" in running["Ends"] else [str(running)]
    words = page.text("#state")
    return problems + [f"{part} is not in {words}" for part in ("6 runs", "1 died", "1 running", "the last one is done in", "best") if part not in words]


def best_is_right(page):
    """The one with the greatest running reward."""
    rewards = {label: float(row(page, label)["Figures"].split("running reward ")[1].split(",")[0])
               for label in ("lr=0.001,seed=1", "lr=0.001,seed=2", "lr=0.01,seed=1", "lr=0.01,seed=2")}
    best = max(rewards, key=rewards.get)
    return [] if row(page, best)["Run"] == best + "best" else [f"{rewards}, but {row(page, best)}"]


def choose_runs(page, wanted):
    for box in page.browser.find_elements(By.CSS_SELECTOR, "#runs input"):
        label = page.script("return arguments[0].closest('tr').dataset.run", box)
        if box.is_selected() != wanted(label):
            box.click()
            return choose_runs(page, wanted)  # the rows are new ones
    return None


def curves_compare(page):
    choose_runs(page, lambda label: label.startswith("lr="))
    wait_until("four curves", lambda: page.count(".values span") == 4)
    head, last = page.table()[0], page.table()[-1]
    problems = [] if len(head) == 5 and last[0] == "30" else [f"the table is {head}, {last}"]
    keys, values = page.script("return [document.querySelector('#keys').textContent, document.querySelector('#values').textContent]")
    return problems + ([] if "/optimizer/lr" in keys and "/seed" in keys and "0.01" in values else [f"the keys are {keys}: {values}"])


def medians_group_seeds(page):
    page.element("#choice label input").click()
    wait_until("two curves", lambda: page.count(".values span") == 2)
    words = page.text(".values")
    page.element("#choice label input").click()
    return [] if "lr=0.001 (2 runs)" in words and "lr=0.01 (2 runs)" in words else [words]


def a_name_shows_its_run_alone(page):
    page.script("[...document.querySelectorAll('#runs button.name')].find(name => name.textContent === 'died').click()")
    wait_until("one curve", lambda: page.count(".values span") == 1)
    return [] if "started" in page.text("#events") or page.count("#events li") >= 0 else [page.text("#events")]


def search_finds(page):
    page.element("input[type=search]").send_keys("died")
    wait_until("one run", lambda: page.count("#runs tr") == 1)
    page.element("input[type=search]").clear()
    page.element("input[type=search]").send_keys(" ")
    page.browser.refresh()
    wait_until("all again", lambda: page.count("#runs tr") == 6)


def running_one_grows(page):
    page.script("[...document.querySelectorAll('#runs button.name')].find(name => name.textContent === 'running').click()")
    grows(page)


def read_runs(browser, url, server):
    page = Page(browser, url)
    check("each run has its state", runs_are_there, page)
    check("the best is known", best_is_right, page)
    check("curves are compared", curves_compare, page)
    check("medians are over seeds", medians_group_seeds, page)
    check_layout(page, "of many runs")
    check("a name shows its run alone", a_name_shows_its_run_alone, page)
    check("a search finds", search_finds, page)
    check("a curve that grows is followed", running_one_grows, page)
    check_browser(page)
    wait_until("six runs", lambda: page.count("#runs tr") == 6)
    os.kill(server, signal.SIGTERM)
    check("a server that ended is told", lambda: wait_until("no answer", lambda: "no answer" in page.text("#state")) and [])


def main():
    folder, what, url, process = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    browser = start_browser(folder)
    try:
        if what == "run":
            read_run(browser, url, process, sys.argv[5])
        else:
            read_runs(browser, url, process)
    finally:
        browser.quit()
    print(f"{(checks - failures) * 100 // checks}%: Checks: {checks}, Failures: {failures}, Errors: 0")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
