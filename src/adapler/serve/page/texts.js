// Texts to begin with, and sentences that the race makes its texts of. All were written for this page.

const SENTENCES = [
  "The central bank left interest rates unchanged on Tuesday, saying that prices had risen more slowly than expected.",
  "Shares of the chip maker fell nine percent after it warned that orders for the next quarter would be weak.",
  "The two airlines said they would merge in a deal worth four billion dollars, pending approval by regulators.",
  "Oil slipped below sixty dollars a barrel as stockpiles grew for the fifth week in a row.",
  "The retailer will close forty stores and move part of its business online.",
  "Unemployment fell to its lowest level in a decade, although wages barely moved.",
  "The striker scored twice in the second half as the visitors came from behind to win three to one.",
  "After rain had stopped play for two hours, the champion needed only five games to finish the match.",
  "The coach would not say whether his captain, who hurt a knee in training, will start on Saturday.",
  "She ran the last lap in under sixty seconds and took almost a second off the record.",
  "The club has signed a young goalkeeper on a contract of four years.",
  "It was their seventh defeat in a row, and the stands were half empty long before the end.",
  "Astronomers have found a planet about the size of Earth that circles a small red star every nine days.",
  "The new phone has a better camera and a larger battery, but it costs a third more than the old one.",
  "Researchers say the method could make solar cells cheaper, though it has only been tried in the laboratory.",
  "A flaw in the widely used browser let attackers read passwords; an update was released overnight.",
  "The company plans to launch two satellites next spring to bring the internet to remote villages.",
  "Scientists who drilled into the ice found air that is more than a million years old.",
  "Ministers from twelve countries met in the capital to discuss a ceasefire, and agreed to meet again in a month.",
  "Thousands of people left their homes as the river rose for a third day.",
  "The president said he would not stand for another term, ending weeks of speculation.",
  "Rescue teams reached the mountain village on foot, since the only road had been washed away.",
  "Voters go to the polls on Sunday in an election that is expected to be close.",
  "The court ruled that the law, passed last year after long protests, is not constitutional.",
  "The film is a quiet pleasure: well acted, never in a hurry, and far funnier than it has any right to be.",
  "I wanted to like it, but the plot makes no sense and the jokes are older than the actors.",
  "The room was clean and the staff could not have been kinder, so we shall certainly come back.",
  "It arrived late, the box was torn, and after two days the screen went dark.",
  "Not the best book of the series, yet I could not put it down.",
  "The food was cold, the music loud, and nobody seemed to care.",
  "A slow first hour gives way to an ending that I have been thinking about ever since.",
  "For this price there is nothing better, and the sound is astonishing.",
];

const EXAMPLES = [
  { name: "News, business", text: SENTENCES[1] + " Analysts had expected growth, but customers are still working through what they bought last year." },
  { name: "News, sport", text: SENTENCES[6] + " The home side had led through an early penalty and were the better team until a defender was sent off." },
  { name: "News, science", text: SENTENCES[12] + " It is too hot for water, they say, but its air may be thick enough for the next telescope to study." },
  { name: "News, world", text: SENTENCES[18] + " Aid groups warned that supplies in the north would last for two weeks at most." },
  { name: "Review, for", text: SENTENCES[24] },
  { name: "Review, against", text: "Not a good film. The cast is fine and the pictures are lovely, but nothing in it is ever at stake, and at two and a half hours it is a very long nothing." },
  { name: "Two sentences", text: "A man in a red jacket is repairing a bicycle in front of a shop.", second: "Somebody is working outdoors." },
  { name: "A long article", text: [...SENTENCES.slice(18, 24), ...SENTENCES.slice(0, 6), SENTENCES[14]].join(" ") },
  { name: "Odd characters", text: "\u003cscript>alert('no')\u003c/script> \u202eright to left\u202c zero\u200bwidth na\u00efve \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u6570\u636e \ud83d\ude42 &amp; \"quotes\"" },
];

const TOPICS = [[0, 6], [6, 12], [12, 18], [18, 24], [24, 32]]; // where in SENTENCES each begins and ends

// The same texts every time: one to four sentences each, of one topic.
function madeUp(count) {
  let state = 20220527;
  const drawn = (high) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * high);
  };
  return Array.from({ length: count }, () => {
    const left = SENTENCES.slice(...TOPICS[drawn(TOPICS.length)]);
    return Array.from({ length: 1 + drawn(4) }, () => left.splice(drawn(left.length), 1)[0]).join(" ");
  });
}
