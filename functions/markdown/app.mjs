// HTML of a text in Markdown, with packages of npm: marked, and the log of Powertools for AWS Lambda.
import { Logger } from '@aws-lambda-powertools/logger';
import { marked } from 'marked';

const logger = new Logger({ serviceName: 'markdown' });

export const handler = async ({ text }, context) => {
  logger.addContext(context);
  const html = await marked.parse(text);
  logger.info('parsed', { characters: text.length });
  return { html };
};
