// Answers: of the server, or of the page itself where it is a file of its own.

/** An answer to a question; an error has its words. */
export async function ask(path, query) {
  const asked = new URLSearchParams(query);
  if (document.getElementById("held")) return held(path, asked);
  const answer = await fetch(`api/${path}?${asked}`);
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

let unpacked = null;

async function held(path, asked) {
  unpacked ??= unpackHeld();
  return new Response(answers[path](await unpacked, asked));
}

async function unpackHeld() {
  const packed = document.getElementById("held").textContent;
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const all = await new Response(stream).arrayBuffer();
  const end = 4 + new DataView(all).getUint32(0, true);
  const told = JSON.parse(new TextDecoder().decode(new Uint8Array(all, 4, end - 4)));
  return { ...told, data: all.slice(end) };
}

const json = JSON.stringify;
const placeOf = (asked, name, missing) => Number(asked.get(name) ?? missing);

/** As the server answers, see `RunCollection` and `JournalIndex`. */
const answers = {
  runs: ({ run }) => json({ changes: run.changes, runs: [run] }),
  run: ({ run }, asked) => json(placeOf(asked, "known", -1) === run.changes ? { changes: run.changes } : run),

  curves({ curves, run }, asked) {
    const axis = asked.get("axis") ?? "step";
    const columns = asked.getAll("column");
    return json(asked.getAll("stream").map((stream, i) => {
      const curve = curves.find((c) => c.stream === stream && c.column === columns[i]);
      const places = curve?.places[axis];
      return places ? { [run.id]: stretch(curve, places, placeOf(asked, "from", -Infinity), placeOf(asked, "to", Infinity)) } : {};
    }));
  },

  rows({ rows }, asked) {
    const { steps, rows: all, ...about } = rows[asked.get("stream")] ?? { steps: [], rows: [], columns: [], whole: [] };
    const start = steps.findIndex((step) => step < placeOf(asked, "before", Infinity));
    const [from, to] = start < 0 ? [0, 0] : [start, start + placeOf(asked, "count", 100)];
    return json({ ...about, steps: steps.slice(from, to), rows: all.slice(from, to), older: Math.max(steps.length - to, 0) });
  },

  histogram: ({ histograms }, asked) => json(histograms[asked.get("stream")]),

  frame({ frames, data }, asked) {
    const { steps, ends, start } = frames.find((f) => f.stream === asked.get("stream") && f.column === asked.get("column"));
    const number = asked.has("number") ? Number(asked.get("number")) : Math.max(steps.findLastIndex((step) => step <= Number(asked.get("step"))), 0);
    return data.slice(number ? ends[number - 1] : start, ends[number]);
  },
};

/** The points between two places, and one more at each side. */
function stretch({ y, low, high, hole_steps: steps }, { x, holes }, from, to) {
  const first = Math.max(x.findIndex((place) => place >= from) - 1, 0);
  const end = x.findLastIndex((place) => place <= to) + 2;
  const cut = (list) => list?.slice(first, end);
  const shown = holes.map((place, i) => [place, steps[i]]).filter(([place]) => place >= from && place <= to);
  return { x: cut(x), y: cut(y), low: cut(low), high: cut(high), holes: shown.map(([place]) => place), hole_steps: shown.map(([, step]) => step) };
}
