"""The chart of the README: CPU per million records and dollars per month, from a run's results."""

from __future__ import annotations

import json
import subprocess
from xml.sax.saxutils import escape

from harness.services import program

# The load of the dollars, and what a month of a core costs that is busy half of the time. The
# price is that of the cost model (design/cost.md).
LOAD = "500GB/day"
BYTES_PER_MONTH = 500e9 * 365 / 12
DOLLARS_PER_CPU_SECOND = 0.0535 / 3600 / 0.5

# The object store serves requests that the bill has already, and Kafka's price has its brokers.
IN_THE_PRICE = ("MinIO", "Kafka")
KAFKA = "Kafka, self-managed: tiered, fetch from followers"

COLOURS = ("#2f6f4f", "#4f9f74", "#b98b2f", "#a34a3a", "#5d6d93")
WIDTH, LEFT, BAR, ROW, TOP = 920, 310, 250, 30, 46


def dollars(found: dict) -> dict[str, float]:
    """The bill of a month by system: requests, storage, Kafka's nodes and traffic, and CPU."""
    command = [program("millpond"), "cost", "--throughput", LOAD, "--compare", "--json"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    estimate = json.loads(output)
    elsewhere = {other["name"]: other["usd_per_month"] for other in estimate["comparators"]}
    buffers = {
        "millpond": estimate["total_usd_per_month"],
        "millpond-columns": estimate["total_usd_per_month"],
        "clickhouseexporter": 0.0,
        "kafka": elsewhere[KAFKA],
        "opendata": elsewhere["OpenData Buffer"],
    }
    millions = BYTES_PER_MONTH / found["load"]["raw_bytes_per_record"] / 1e6
    bills = {}
    for name, system in found["systems"].items():
        processes = system["cpu_seconds_per_million_records"]["by_process"]
        seconds = sum(cpu["median"] for of, cpu in processes.items() if of not in IN_THE_PRICE)
        bills[name] = buffers[name] + seconds * millions * DOLLARS_PER_CPU_SECOND
    return bills


def svg(found: dict) -> str:
    bills = dollars(found)
    systems = found["systems"]
    seconds = {
        name: system["cpu_seconds_per_million_records"]["system"]["median"]
        for name, system in systems.items()
    }
    height = TOP + ROW * len(systems) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    panels = [
        (LEFT, "CPU-seconds per million records", seconds, "{:.1f}"),
        (LEFT + BAR + 60, "US dollars a month at 500 GB a day", bills, "{:,.0f}"),
    ]
    for left, title, figures, form in panels:
        parts.append(_text(left, 24, title, weight="bold"))
        longest = max(figures.values())
        for row, (name, figure) in enumerate(figures.items()):
            y, length = TOP + ROW * row, max(2, (BAR - 40) * figure / longest)
            colour = COLOURS[row % len(COLOURS)]
            parts.append(
                f'<rect x="{left}" y="{y}" width="{length:.0f}" height="20" fill="{colour}"/>'
            )
            parts.append(_text(left + length + 6, y + 15, form.format(figure)))
            if left == LEFT:
                parts.append(_text(LEFT - 8, y + 15, systems[name]["title"], anchor="end"))
    note = (
        "without ClickHouse, which all need; the clickhouseexporter has no buffer. "
        f"make bench-peers, {found['date'][:10]}, commit {found['commit'][:7]}"
    )
    parts.append(_text(8, height - 10, note, colour="#555555"))
    return "\n".join([*parts, "</svg>", ""])


def _text(
    x: float,
    y: float,
    text: str,
    anchor: str = "start",
    weight: str = "normal",
    colour: str = "#222222",
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{colour}">{escape(text)}</text>'
    )
