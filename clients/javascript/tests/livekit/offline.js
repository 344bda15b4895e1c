/** A real `AgentSession` of `@livekit/agents` without a room: a scripted ear, a voice of silence, and a speaker. */
import { initializeLogger, llm, stt, tts, voice } from "@livekit/agents";
import { AudioFrame } from "@livekit/rtc-node";
import { ReadableStream } from "node:stream/web";

const RATE = 16_000;
const WORD_MS = 200;
const FRAME_MS = 20;
/** Of the scripted LLM, in seconds. */
const THINKS = { ttft: 0.01, duration: 0.02 };

initializeLogger({ pretty: false, level: "silent" });

function silence(ms) {
  const samples = (RATE * ms) / 1_000;
  return new AudioFrame(new Int16Array(samples), RATE, 1, samples);
}

class Ear extends stt.STT {
  label = "scripted";
  constructor() {
    super({ streaming: true, interimResults: true });
  }
  stream() {
    return (this.speech = new HeardSpeech(this, RATE));
  }
}

class HeardSpeech extends stt.SpeechStream {
  label = "scripted";
  async run() {
    for await (const _ of this.input);
  }
  hear(type, text) {
    const data = { language: "en", text, startTime: 0, endTime: 0, confidence: 1 };
    this.queue.put({ type: stt.SpeechEventType[type], alternatives: [data] });
  }
}

/** Never asked: the agent below makes its sound itself. */
class NoVoice extends tts.TTS {
  label = "none";
  constructor() {
    super(RATE, 1, { streaming: true });
  }
}

class Agent extends voice.Agent {
  async ttsNode(text) {
    const { speaker } = this;
    return new ReadableStream({
      async start(controller) {
        for await (const piece of text) {
          for (const word of piece.split(/(?<= )/)) {
            speaker.words.push(word);
            controller.enqueue(silence(WORD_MS));
          }
        }
        controller.close();
      },
    });
  }
}

/** Plays in real time, and says how far it came, and with which words. */
class Speaker extends voice.AudioOutput {
  constructor() {
    super(RATE, undefined, { pause: false });
    this.words = [];
    this.playing = false;
  }
  async captureFrame(frame) {
    await super.captureFrame(frame);
    if (!this.playing) {
      this.playing = true;
      this.began = Date.now();
      this.onPlaybackStarted(this.began);
    }
  }
  flush() {
    super.flush();
    if (this.playing) this.timer = setTimeout(() => this.finish(false), this.words.length * WORD_MS);
  }
  clearBuffer() {
    if (this.playing) this.finish(true);
  }
  finish(interrupted) {
    clearTimeout(this.timer);
    const count = interrupted ? this.played() : this.words.length;
    const synchronizedTranscript = this.words.splice(0).slice(0, count).join("");
    this.playing = false;
    this.onPlaybackFinished({ playbackPosition: (count * WORD_MS) / 1_000, interrupted, synchronizedTranscript });
  }
  played() {
    return this.playing ? Math.floor((Date.now() - this.began) / WORD_MS) : 0;
  }
}

class Microphone extends voice.AudioInput {
  constructor() {
    super();
    const start = (controller) => {
      this.timer = setInterval(() => controller.enqueue(silence(FRAME_MS)), FRAME_MS);
    };
    this.multiStream.addInputStream(new ReadableStream({ start }));
  }
}

/** A session whose LLM answers as scripted (`{ input, content }`), with a tool `forecast`; `say` is the caller. */
export async function offlineSession(t, answers) {
  const ear = new Ear();
  const session = new voice.AgentSession({
    llm: new voice.testing.FakeLLM(answers.map((answer) => ({ ...THINKS, ...answer }))),
    stt: ear,
    tts: new NoVoice(),
    turnHandling: {
      turnDetection: "stt",
      interruption: { minDuration: 0, minWords: 0, resumeFalseInterruption: false },
      endpointing: { minDelay: 0, maxDelay: 0 },
    },
  });
  const speaker = new Speaker();
  const microphone = new Microphone();
  session.output.audio = speaker;
  session.input.audio = microphone;
  const forecast = llm.tool({
    description: "The weather of a day",
    parameters: { type: "object", properties: { day: { type: "string" } } },
    execute: async () => "sun",
  });
  const agent = new Agent({ instructions: "Be brief. The password is xyzzy.", tools: { forecast } });
  agent.speaker = speaker;
  t.after(() => clearInterval(microphone.timer));
  const say = (...pieces) => {
    ear.speech.hear("START_OF_SPEECH", "");
    for (const piece of pieces.slice(0, -1)) ear.speech.hear("INTERIM_TRANSCRIPT", piece);
    ear.speech.hear("FINAL_TRANSCRIPT", pieces.at(-1));
    ear.speech.hear("END_OF_SPEECH", "");
  };
  return { session, speaker, ear, say, start: () => session.start({ agent }) };
}
