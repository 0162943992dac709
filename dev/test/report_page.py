#!/usr/bin/env python3
"""What a browser makes of report.html: runs a small training, opens its page and one that compares two runs in
headless Chromium, and looks at the elements, the tooltip, the width on a phone, the colours and the pixels.

    dev/test/report_page.py [--keep FOLDER]     FOLDER gets the pages and the pictures

Without Chromium all is skipped. Last line: N passed, N failed, N skipped.
"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# put at the end of a page: moves the pointer, measures, and leaves what it found in an element
PROBE = """<script>
const plot = document.querySelector(".plot"), svg = plot.querySelector("svg"), r = svg.getBoundingClientRect();
svg.dispatchEvent(new PointerEvent("pointermove", { clientX: r.left + r.width / 3, clientY: r.top + 50 }));
const outside = [], close = [];
for (const s of document.querySelectorAll("svg")) {
  const ends = [...s.querySelectorAll(".end")], box = t => t.getBoundingClientRect();
  for (const t of ends) if (box(t).right > box(s).right + 1) outside.push(t.textContent);
  for (const a of ends) for (const b of ends)
    if (a != b && Math.abs(box(a).y - box(b).y) < 10 && Math.abs(box(a).x - box(b).x) < 40) close.push(a.textContent);
}
document.body.dataset.probe = JSON.stringify({
  tip: plot.querySelector(".tip").hidden ? "" : plot.querySelector(".tip").innerText, outside, close,
  width: document.documentElement.scrollWidth, window: innerWidth, error: window.problem || "",
  charts: document.querySelectorAll("svg").length, curves: document.querySelectorAll("path.curve").length,
  labels: [...svg.querySelectorAll(".end")].map(t => t.textContent), text: document.body.innerText,
  dark: matchMedia("(prefers-color-scheme: dark)").matches });
</script>"""
TRAP = "<script>window.onerror = message => { window.problem = message; }</script>"
# what the run writes must stay text
PROMPT = "</script><img src=x onerror=\"window.problem='a text became part of the page'\">"
passed = failed = 0


def check(name, good, found=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print(f"ERROR: {name}: {found}")


def browse(page, *options):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *options, "file://" + page]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def probe(page, width=1200, *options):
    """what PROBE finds in a page that is so wide; a frame, as a window has a least width"""
    with open(page) as file:
        text = file.read()
    inner, outer = page + ".probe.html", page + ".frame.html"
    with open(inner, "w") as file:
        file.write(text.replace("<main>", TRAP + "<main>").replace("</body>", PROBE + "</body>"))
    with open(outer, "w") as file:
        file.write(f'<iframe id="f" style="border:0;width:{width}px;height:3000px" src="{os.path.basename(inner)}"></iframe>'
                   '<script>f.onload = () => { document.body.dataset.probe = f.contentDocument.body.dataset.probe; };</script>')
    out = browse(outer, "--allow-file-access-from-files", "--window-size=1300,3000", *options, "--dump-dom")
    found = re.search(r'data-probe="([^"]*)"', out)
    return json.loads(found.group(1).replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">")
                      .replace("&nbsp;", " ").replace("&amp;", "&")) if found else {}


def pixels(path):
    """colour -> how many pixels of a PNG have it"""
    with open(path, "rb") as file:
        data = file.read()
    at, packed, width, height, channels = 8, b"", 0, 0, 0
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height, _, color = struct.unpack(">IIBB", data[at + 8:at + 18])
            channels = {2: 3, 6: 4}[color]
        if kind == b"IDAT":
            packed += data[at + 8:at + 8 + size]
        at += 12 + size
    raw, stride, before, counts = zlib.decompress(packed), width * channels, bytearray(width * channels), {}
    for y in range(height):
        line = bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        kind = raw[y * (stride + 1)]
        for i in range(stride if kind else 0):
            a = line[i - channels] if i >= channels else 0
            b, c = before[i], before[i - channels] if i >= channels else 0
            p = a + b - c
            paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            line[i] = (line[i] + (0, a, b, (a + b) // 2, paeth)[kind]) & 255
        for x in range(0, stride, channels):
            key = tuple(line[x:x + 3])
            counts[key] = counts.get(key, 0) + 1
        before = line
    return counts


def train(folder, name, steps, *options):
    run = os.path.join(folder, name)
    command = ["./train_gpt2", "--layers", "1", "--heads", "2", "--channels", "16", "--seq-len", "32", "--batch", "4",
               "--steps", steps, "--val-every", "20", "--sample-every", "40", "--save-every", "40", "--quiet",
               "--prompt", PROMPT, "--out", run, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"))
    with open(run + "/log.jsonl") as log:
        return run, [json.loads(line) for line in log]


def main():
    folder = sys.argv[2] if sys.argv[1:2] == ["--keep"] else tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    run, log = train(folder, "one", "80")
    page = run + "/report.html"
    val = [line["val_loss"] for line in log if "val_loss" in line][-1]

    found = probe(page)
    text = found.get("text", "")
    check("the page works", found and not found["error"], found.get("error", "no probe"))
    if not found:
        return
    check("four charts", found["charts"] == 4 and found["curves"] == 5, (found["charts"], found["curves"]))
    labels = dict(label.rsplit(" ", 1) for label in found["labels"])
    check("labels at the ends", set(labels) == {"training", "validation", "entropy"}, labels)
    check("the label is the last value", abs(float(labels.get("validation", 0)) - val) < 1e-3, (labels, val))
    check("tooltip", re.search(r"step \d+\s+training\s+\d\.\d+\s+validation\s+\d\.\d+ at \d+", found["tip"]), found["tip"])
    check("samples are there, as text", text.count(PROMPT) >= 4, text.count(PROMPT))
    for part in ("Machine, model, data", "Options", "Events", "training loss", "tokens a second", "AdamW", "finished"):
        check("the page says " + part, part in text, text[:300])
    check("labels inside and apart", not found["outside"] + found["close"], (found["outside"], found["close"]))

    phone = probe(page, 360)
    check("no sideways scrolling on a phone", phone["width"] <= 360 == phone["window"], (phone["width"], phone["window"]))
    check("labels on a phone", sorted(l.split()[0] for l in phone["labels"]) == ["entropy", "training", "validation"]
          and not phone["outside"] + phone["close"], phone)

    other, _ = train(folder, "two", "50", "--lr", "0.02")
    both = os.path.join(folder, "both.html")
    subprocess.run(["./train_gpt2", "report", run, other, "--out", both], check=True, stdout=subprocess.DEVNULL)
    for width in (1200, 360):
        found = probe(both, width)
        check("comparison works", not found["error"], found["error"])
        check("a curve for each", found["charts"] == 4 and found["curves"] == 2 * 2 + 3 * 2, found["curves"])
        check("each is named at its end", sum("…" in l or "one" in l or "two" in l for l in found["labels"]) == 2,
              found["labels"])
        check("options that differ", re.search(r"lr\s+\S+\s+0\.02", found["text"]), found["text"][:900])
        check("labels inside", not found["outside"] and found["width"] <= width, (found["outside"], found["width"]))

    for dark, background in ((False, (255, 255, 255)), (True, (0x14, 0x17, 0x1a))):
        name = os.path.join(folder, "dark.png" if dark else "light.png")
        scheme = "--blink-settings=preferredColorScheme=" + ("0" if dark else "1")
        browse(page, scheme, "--window-size=900,1400", "--screenshot=" + name)
        counts = pixels(name)
        total = sum(counts.values())
        check("background " + name, counts.get(background, 0) > total * 0.6, max(counts.items(), key=lambda i: i[1]))
        curve = (0x74, 0xb0, 0xff) if dark else (0x17, 0x63, 0xc6)
        check("curves " + name, counts.get(curve, 0) > 300, counts.get(curve, 0))
    if sys.argv[1:2] != ["--keep"]:
        shutil.rmtree(folder)


if BROWSER is None:
    print("no Chromium here: the page is not looked at\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)
main()
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
